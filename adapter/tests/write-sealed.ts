/**
 * Seals what Python's vectors hold, for a Python test that opens it: `node tests/write-sealed.ts`.
 *
 * Sealing is random, so the file is written only when the format changes.
 */
import { writeFile } from "node:fs/promises";
import { sealerOf } from "../src/sealing.ts";
import { SEALED } from "./support/sealed-fields.ts";

const vectors = SEALED.vectors
  .filter(({ name }) => name.endsWith("-joserfc"))
  .map(async ({ name, kind, kid, runId, opened }) => {
    const key = SEALED.keys.find((jwk) => jwk.kid === kid);
    const sealed = await (await sealerOf(JSON.stringify(key), "KEY")).seal(kind, opened);
    return { name: name.replace("joserfc", "adapter"), kind, kid, runId, opened, sealed };
  });
const about =
  "Sealed by the adapter's src/sealing.ts with the test keys of vectors.json; see adapter/tests/write-sealed.ts.";
const text = JSON.stringify({ about, vectors: await Promise.all(vectors) }, undefined, 1);
await writeFile(new URL("../../tests/fixtures/sealing/adapter.json", import.meta.url), `${text}\n`);
