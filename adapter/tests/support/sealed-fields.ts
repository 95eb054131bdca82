/** Opens what was sealed, as the worker does; only tests may. */
import { inflateRawSync } from "node:zlib";
import { compactDecrypt, importJWK, type JWK } from "jose";
import { type Sealer, sealerOf } from "../../src/sealing.ts";
import { type Data, fixture } from "./vectors.ts";

export interface SealedVector {
  readonly name: string;
  readonly kind: "secrets" | "prompt";
  readonly kid: string;
  readonly runId: string;
  readonly opened: Data;
  readonly sealed: string;
}

/** Test keys, used nowhere else, and what each library sealed with them. */
export const SEALED: { keys: JWK[]; vectors: SealedVector[] } = fixture("sealing/vectors.json");
export const [KEY = {}] = SEALED.keys;

export async function sealer(): Promise<Sealer> {
  return await sealerOf(JSON.stringify(KEY), "KEY");
}

/** The protected header and the content. */
export async function opened(sealed: string, key: JWK = KEY): Promise<{ header: Data; content: Data }> {
  const { plaintext, protectedHeader } = await compactDecrypt(sealed, await importJWK(key, "ECDH-ES"));
  return { header: protectedHeader, content: JSON.parse(inflateRawSync(plaintext).toString()) };
}
