/**
 * Signs tokens that grant access to the transcript of one run: for an hour, a new one for each request, or for some days,
 * for the link that people get.
 *
 * Same rules as `agent_runs/transcript/tokens.py`: a compact JWS, HS256, `sub` = the run's name, `aud` =
 * `agent-runs.transcripts`, `iat` to revoke by. The key is the first one in the transcript service's key file, a JWK or JWK set of kty oct.
 */

import { base64url, type JWTPayload, SignJWT } from "jose";
import { ConfigurationError } from "./errors.ts";
import { firstKey, keyFile, type Settings } from "./settings.ts";

const AUDIENCE = "agent-runs.transcripts";
const KEY_BYTES = 32;
const TOKEN_LIFETIME_SECONDS = 3600;
/** The life of a link, as of those that `agent-runs show` prints. */
export const LINK_LIFETIME_SECONDS = 7 * 24 * 3600;

type TokenSettings = Pick<Settings, "transcriptsKeyFile">;

/** The run's name in links and tokens, as in `agent_runs/contracts/identity.py`: agents can have runs with one id. */
export function runName(agentId: string, runId: string): string {
  return `${agentId}~${runId}`;
}

/** The address of a run at the transcript service. */
export function runUrl(base: string, run: string): string {
  return `${base.replace(/\/+$/, "")}/runs/${encodeURIComponent(run)}`;
}

/** A token for one run, by its name; `lifetime` is in seconds. Rejects with `ConfigurationError`, which never quotes the key. */
export async function mint(
  run: string,
  settings: TokenSettings,
  lifetime = TOKEN_LIFETIME_SECONDS,
  claims: JWTPayload = { aud: AUDIENCE },
): Promise<string> {
  return await new SignJWT({ ...claims, sub: run })
    .setProtectedHeader({ alg: "HS256" })
    .setIssuedAt()
    .setExpirationTime(`${lifetime} s`)
    .sign(await readKey(settings.transcriptsKeyFile));
}

/** A token for the workspace of one run, as Paperclip's side of it. */
export async function workspaceToken(run: string, company: string, settings: TokenSettings): Promise<string> {
  return await mint(run, settings, TOKEN_LIFETIME_SECONDS, { aud: "agent-runs.workspace", company, attempt: 0 });
}

/**
 * The address of a run's page, with a token in it: whoever has the link reads this run's transcript, and nothing else,
 * until it expires. Its dots are tildes, because Paperclip redacts a token with dots, or after `token=`, in a run's log.
 * Without a usable key the address alone.
 */
export async function linkTo(base: string, run: string, settings: TokenSettings): Promise<string> {
  const page = runUrl(base, run);
  const token = await mint(run, settings, LINK_LIFETIME_SECONDS).catch(() => undefined);
  return token === undefined ? page : `${page}?open=${token.replaceAll(".", "~")}`;
}

/** The signing key. Read for every token, so that a rotated or late file is found. */
async function readKey(path: string): Promise<Uint8Array> {
  const field = "AGENT_RUNS_TRANSCRIPTS_KEY_FILE";
  const text = await keyFile(path, field, "the worker's own file");
  try {
    const { kty, k = "" } = firstKey(text);
    const secret = base64url.decode(k);
    if (kty === "oct" && secret.length >= KEY_BYTES) return secret;
  } catch {
    // the cause may quote the key
  }
  const remedy = `names ${path}, which must hold a JWK of kty oct with at least ${KEY_BYTES} bytes: copy the worker's own file`;
  throw new ConfigurationError({ field, remedy });
}
