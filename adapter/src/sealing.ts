/**
 * Seals what only a worker may read, which then may enter histories. Same rules as `agent_runs/paperclip/sealing.py`, which
 * documents the format: a compact JWE, ECDH-ES + A256GCM, header `kid`, `typ` (the purpose) and `cty`; the plaintext is raw DEFLATE
 * of JSON text. JWE's own `zip` is not used: `jose` dropped it. This side holds the public half and never opens.
 *
 * Source: RFC 7516, RFC 7518 section 4.6, RFC 7638; jose 6.
 */

import { randomUUID } from "node:crypto";
import { constants } from "node:fs";
import { link, mkdir, open, readFile, unlink } from "node:fs/promises";
import { dirname, join } from "node:path";
import { promisify } from "node:util";
import { deflateRaw } from "node:zlib";
import { CompactEncrypt, calculateJwkThumbprint, exportJWK, generateKeyPair, importJWK, type JWK } from "jose";
import type { SealedCheck, SealedJoin, SealedRun } from "./contracts.ts";
import { InvalidRequest } from "./invalid-request.ts";
import { objectOf } from "./paperclip-api.ts";
import { ConfigurationError, type Settings } from "./settings.ts";

/** Names in itself what it may be used for. */
export type Content = SealedRun | SealedJoin | SealedCheck;

/** Seals with one public key. */
export interface Sealer {
  /**
   * The compact JWE of `content`. Compresses outside the event loop.
   *
   * @throws InvalidRequest: no JSON, or larger than a history can carry.
   */
  seal(content: Content): Promise<string>;
  /** RFC 7638 thumbprint: names the key in every sealed text. */
  readonly kid: string;
}

/** A sealing key that cannot be used or read. The message never quotes the key. */
export class UnusableKey extends ConfigurationError {
  constructor(remedy: string, field = "AGENT_RUNS_SEALING_KEY_FILE") {
    super([{ field, remedy }]);
  }
}

/** Bytes of a plaintext after DEFLATE: a sealed text then has 1 MiB. Temporal refuses payloads over 2 MiB. */
const PACKED_LIMIT = 768 * 1024;
const DEFLATE = { level: 9 };
const OWNER_ONLY = 0o600;

const deflate = promisify<Buffer, { level: number }, Buffer>(deflateRaw);
type PublicKey = Awaited<ReturnType<typeof importJWK>>;

/**
 * Seals with the configured key: AGENT_RUNS_SEALING_KEY, else the file, which is created (mode 0600) if there is none.
 *
 * @throws UnusableKey: no usable key there, or none at all in production.
 */
export async function sealerFrom(
  settings: Pick<Settings, "sealingKey" | "sealingKeyFile" | "production">,
): Promise<Sealer> {
  const { sealingKey } = settings;
  return sealingKey === undefined
    ? await sealerOf(await readOrCreateKey(settings), "AGENT_RUNS_SEALING_KEY_FILE")
    : await sealerOf(sealingKey, "AGENT_RUNS_SEALING_KEY");
}

/**
 * Seals with the first key of a JWK or a JWK set; private halves are ignored.
 *
 * @param field the setting that has it, for the error.
 * @throws UnusableKey: not a P-256 or X25519 JWK.
 */
export async function sealerOf(text: string, field: string): Promise<Sealer> {
  try {
    const jwk = publicHalf(JSON.parse(text));
    const [kid, key] = await Promise.all([calculateJwkThumbprint(jwk), importJWK(jwk, "ECDH-ES")]);
    return { kid, seal: (content) => seal(content, kid, key) };
  } catch {
    // The cause may quote the key, so it is not kept.
    throw new UnusableKey("must hold a P-256 or X25519 JWK, or a JWK set with at least one, as JSON text", field);
  }
}

async function seal(content: Content, kid: string, key: PublicKey): Promise<string> {
  const { purpose } = content.binding;
  const packed = await deflate(jsonOf(content), DEFLATE);
  if (packed.length > PACKED_LIMIT) {
    throw new InvalidRequest(
      `what is sealed for this ${purpose} is too large: ${packed.length} bytes packed, ${PACKED_LIMIT} are possible; ` +
        "shorten the task, templates, instructions or env",
    );
  }
  const header = { alg: "ECDH-ES", enc: "A256GCM", kid, typ: `agent-runs.${purpose}`, cty: "json+deflate" };
  return await new CompactEncrypt(packed).setProtectedHeader(header).encrypt(key);
}

function jsonOf(content: Content): Buffer {
  try {
    return Buffer.from(JSON.stringify(content));
  } catch {
    throw new InvalidRequest("the execution context holds a value that JSON cannot carry, such as an object in itself");
  }
}

/** The public half of the first key. Throws anything when there is none. */
function publicHalf(parsed: unknown): JWK {
  const { keys } = objectOf(parsed);
  const first: unknown = Array.isArray(keys) ? keys[0] : parsed;
  const { kty, crv, x, y } = first as JWK;
  if (kty === "EC" && crv === "P-256") return { kty, crv, x, y };
  if (kty === "OKP" && crv === "X25519") return { kty, crv, x };
  throw new TypeError("another kind of key");
}

/** The key file's text, after creating the file if there is none and that is allowed. */
async function readOrCreateKey(settings: Pick<Settings, "sealingKeyFile" | "production">): Promise<string> {
  const { sealingKeyFile: path, production } = settings;
  try {
    return await readFile(path, "utf8");
  } catch (error) {
    if (codeOf(error) !== "ENOENT") throw unreadableFile(path, error);
  }
  if (production) {
    throw new UnusableKey(
      `names ${path}, which does not exist, and in production no key is created; mount the sealing key there`,
    );
  }
  try {
    await publish(await newKey(), path);
    return await readFile(path, "utf8");
  } catch (error) {
    throw unreadableFile(path, error);
  }
}

/** A new P-256 key: unlike X25519, every supported Node has it without an experimental warning. */
async function newKey(): Promise<string> {
  const { privateKey } = await generateKeyPair("ECDH-ES", { crv: "P-256", extractable: true });
  const jwk = await exportJWK(privateKey);
  return JSON.stringify({ ...jwk, kid: await calculateJwkThumbprint(jwk) });
}

/** Creates the file atomically; of several processes that start together the first one wins. */
async function publish(text: string, path: string): Promise<void> {
  await mkdir(dirname(path), { recursive: true, mode: 0o700 });
  const draft = join(dirname(path), `.sealing-${randomUUID()}`);
  const file = await open(draft, constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL, OWNER_ONLY);
  try {
    await file.writeFile(text);
    await file.sync();
    await link(draft, path).catch((error: unknown) => {
      if (codeOf(error) !== "EEXIST") throw error; // another process was first; its key counts
    });
  } finally {
    await file.close();
    await unlink(draft);
  }
}

function codeOf(error: unknown): string {
  return (error as NodeJS.ErrnoException).code ?? "unknown error";
}

function unreadableFile(path: string, error: unknown): UnusableKey {
  return new UnusableKey(`names ${path}, which cannot be read or created (${codeOf(error)})`);
}
