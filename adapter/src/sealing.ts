/**
 * Seals what only a worker may read, which then may enter histories. Same rules as `agent_runs/paperclip/sealing.py`, which
 * documents the format: a compact JWE, ECDH-ES + A256GCM, header `kid`, `typ` (the purpose) and `cty`; the plaintext is raw DEFLATE
 * of JSON text. JWE's own `zip` is not used: `jose` dropped it. This side holds the public half and never opens.
 *
 * Source: RFC 7516, RFC 7518 section 4.6, RFC 7638; jose 6.
 */

import { promisify } from "node:util";
import { deflateRaw } from "node:zlib";
import { CompactEncrypt, calculateJwkThumbprint, importJWK, type JWK } from "jose";
import type { SealedCheck, SealedJoin, SealedMessage, SealedRun } from "../generated/contracts.ts";
import { ConfigurationError, InvalidRequest } from "./errors.ts";
import { firstKey, keyFile, type Settings } from "./settings.ts";

/** Names in itself what it may be used for. */
export type Content = SealedRun | SealedJoin | SealedMessage | SealedCheck;

/** Seals with one public key, which `kid`, its RFC 7638 thumbprint, names in every sealed text. */
export type Sealer = Readonly<Awaited<ReturnType<typeof sealerOf>>>;

/** Bytes of a plaintext after DEFLATE: a sealed text then has 1 MiB. Temporal refuses payloads over 2 MiB. */
const PACKED_LIMIT = 768 * 1024;
const DEFLATE = { level: 9 };

const deflate = promisify<Buffer, { level: number }, Buffer>(deflateRaw);
type PublicKey = Awaited<ReturnType<typeof importJWK>>;

/**
 * Seals with the configured key: AGENT_RUNS_SEALING_KEY, else the file.
 *
 * @throws ConfigurationError: no usable key there.
 */
export async function sealerFrom(settings: Pick<Settings, "sealingKey" | "sealingKeyFile">): Promise<Sealer> {
  const { sealingKey, sealingKeyFile } = settings;
  if (sealingKey !== undefined) return await sealerOf(sealingKey, "AGENT_RUNS_SEALING_KEY");
  const field = "AGENT_RUNS_SEALING_KEY_FILE";
  return await sealerOf(await keyFile(sealingKeyFile, field, "the output of `agent-runs sealing-key`"), field);
}

/**
 * Seals with the first key of a JWK or a JWK set; private halves are ignored.
 *
 * @param field the setting that has it, for the error.
 * @throws ConfigurationError: not a P-256 or X25519 JWK.
 */
export async function sealerOf(text: string, field: string) {
  try {
    const jwk = publicHalf(firstKey(text));
    const [kid, key] = await Promise.all([calculateJwkThumbprint(jwk), importJWK(jwk, "ECDH-ES")]);
    return { kid, seal: (content: Content) => seal(content, kid, key) };
  } catch {
    // The cause may quote the key, so it is not kept.
    const remedy = "must hold a P-256 or X25519 JWK, or a JWK set with at least one, as JSON text";
    throw new ConfigurationError({ field, remedy });
  }
}

/**
 * The compact JWE of `content`. Compresses outside the event loop.
 *
 * @throws InvalidRequest: no JSON, or larger than a history can carry.
 */
async function seal(content: Content, kid: string, key: PublicKey): Promise<string> {
  const { purpose } = content.binding;
  const packed = await deflate(jsonOf(content), DEFLATE);
  if (packed.length > PACKED_LIMIT) {
    throw new InvalidRequest(
      `what is sealed for this ${purpose} is too large: ${packed.length} bytes packed exceed the limit of ${PACKED_LIMIT}; ` +
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

/** Throws anything for another kind of key. */
function publicHalf({ kty, crv, x, y }: JWK): JWK {
  if (kty === "EC" && crv === "P-256") return { kty, crv, x, y };
  if (kty === "OKP" && crv === "X25519") return { kty, crv, x };
  throw new TypeError("another kind of key");
}
