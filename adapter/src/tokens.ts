/**
 * Tokens that open the transcript of one run, for an hour: a program makes a new one for every request.
 *
 * The twin of `transcripts/tokens.py`: a compact JWS, HS256, `sub` = the run's id, `aud` = `agent-runs.transcripts`. The
 * key is the first one in the transcript service's key file, a JWK or JWK set of kty oct. It is read, never made: a
 * key that the service does not have would open nothing.
 */

import { readFile } from "node:fs/promises";
import { base64url, SignJWT } from "jose";

const AUDIENCE = "agent-runs.transcripts";
const KEY_BYTES = 32;
const LASTING_SECONDS = 3600;

/** What of the settings this room needs. */
export interface TokenSettings {
  transcriptsKeyFile: string;
}

/** The file holds no key that tokens can be signed with. Never quotes it. */
export class UnusableTokenKey extends Error {}

/** A token for one run. Rejects with `UnusableTokenKey`. */
export async function mint(runId: string, settings: TokenSettings): Promise<string> {
  return await new SignJWT({ sub: runId, aud: AUDIENCE })
    .setProtectedHeader({ alg: "HS256" })
    .setExpirationTime(Math.floor(Date.now() / 1000) + LASTING_SECONDS)
    .sign(await keyIn(settings.transcriptsKeyFile));
}

/** The signing key. Read anew each time, so that a rotated or late file is found. */
async function keyIn(file: string): Promise<Uint8Array> {
  const remedy = "give AGENT_RUNS_TRANSCRIPTS_KEY_FILE the key file of the transcript service";
  let text: string;
  try {
    text = await readFile(file, "utf8");
  } catch (error) {
    const why = (error as NodeJS.ErrnoException).code ?? "unreadable";
    throw new UnusableTokenKey(`${file} cannot be read (${why}): ${remedy}`);
  }
  const secret = secretOf(text);
  if (secret === undefined || secret.length < KEY_BYTES) {
    throw new UnusableTokenKey(`${file} holds no JWK of kty oct with at least ${KEY_BYTES} bytes: ${remedy}`);
  }
  return secret;
}

function secretOf(text: string): Uint8Array | undefined {
  try {
    const found = JSON.parse(text);
    const jwk = Array.isArray(found.keys) ? found.keys[0] : found;
    return jwk.kty === "oct" ? base64url.decode(jwk.k) : undefined;
  } catch {
    return undefined;
  }
}
