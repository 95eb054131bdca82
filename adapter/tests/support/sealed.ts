/** A sealing key for tests, and its private half, with which a test opens what was sealed as a worker does. */

import { inflateRawSync } from "node:zlib";
import { compactDecrypt, exportJWK, generateKeyPair, importJWK, type JWK } from "jose";
import { type Sealer, sealerOf } from "../../src/sealing.ts";

const { privateKey } = await generateKeyPair("ECDH-ES", { crv: "P-256", extractable: true });

export const KEY: JWK = await exportJWK(privateKey);

// biome-ignore lint/suspicious/noExplicitAny: data of any shape
export type Data = any;

export async function sealer(): Promise<Sealer> {
  return await sealerOf(JSON.stringify(KEY), "KEY");
}

/** The protected header and the content. */
export async function opened(sealed: string, key: JWK = KEY): Promise<{ header: Data; content: Data }> {
  const { plaintext, protectedHeader } = await compactDecrypt(sealed, await importJWK(key, "ECDH-ES"));
  return { header: protectedHeader, content: JSON.parse(inflateRawSync(plaintext).toString()) };
}
