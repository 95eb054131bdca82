import { mkdtemp, readFile, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { exportJWK, generateKeyPair } from "jose";
import { beforeEach, describe, expect, test } from "vitest";
import type { SealedRun } from "../generated/contracts.ts";
import { ConfigurationError } from "../src/errors.ts";
import { sealerFrom, sealerOf } from "../src/sealing.ts";
import { KEY, opened, sealer } from "./support/sealed.ts";

const CANARY = "canary-7a";
const OTHER = await exportJWK((await generateKeyPair("ECDH-ES", { crv: "P-256", extractable: true })).privateKey);
const CONTENT: SealedRun = {
  binding: { purpose: "run", workflowId: "agent-run:ada", companyId: "acme", runId: "run-1", task: null },
  context: { config: { env: { A: "é-𝄞" } } },
};

test("a sealed text opens unchanged, with a header that names key, purpose and format", async () => {
  const { kid, seal } = await sealer();
  const { header, content } = await opened(await seal(CONTENT));
  expect(content).toEqual(CONTENT);
  const { epk, ...fields } = header;
  expect(epk.crv).toBe("P-256");
  expect(fields).toEqual({ alg: "ECDH-ES", enc: "A256GCM", kid, typ: "agent-runs.run", cty: "json+deflate" });
});

test("a sealed text is another one each time", async () => {
  const { seal } = await sealer();
  expect(await seal(CONTENT)).not.toBe(await seal(CONTENT));
});

test("the public half alone seals", async () => {
  const { d: _, ...half } = KEY;
  const sealed = await (await sealerOf(JSON.stringify({ keys: [half] }), "KEY")).seal(CONTENT);
  expect((await opened(sealed)).content).toEqual(CONTENT);
});

test("the first key of a set is the one that seals", async () => {
  const [first, second] = await Promise.all([KEY, OTHER].map((key) => sealerOf(JSON.stringify(key), "KEY")));
  expect((await sealerOf(JSON.stringify({ keys: [OTHER, KEY] }), "KEY")).kid).toBe(second?.kid);
  expect(first?.kid).not.toBe(second?.kid);
});

const other = await generateKeyPair("ECDH-ES", { crv: "P-384", extractable: true });

test.each([
  CANARY,
  "[]",
  "5",
  "null",
  "{}",
  '{"keys": []}',
  '{"keys": ["x"]}',
  JSON.stringify({ kty: "EC", crv: "P-256", x: CANARY }),
  JSON.stringify({ kty: "EC", crv: "P-256", x: CANARY, y: CANARY }),
  JSON.stringify({ kty: "EC", crv: ["P-256"], x: CANARY, y: CANARY }),
  JSON.stringify({ kty: "RSA", n: CANARY, e: "AQAB" }),
  JSON.stringify(await exportJWK(other.publicKey)),
])("the error about an unusable key does not quote it: %#", async (text) => {
  const refused: unknown = await sealerOf(text, "KEY").catch((error: unknown) => error);
  expect(refused).toBeInstanceOf(ConfigurationError);
  expect(String((refused as Error).stack)).not.toContain(CANARY);
  expect((refused as Error).cause).toBeUndefined();
  expect((refused as ConfigurationError).problems).toMatchObject([{ field: "KEY" }]);
});

describe("the key file", () => {
  let sealingKeyFile: string;

  beforeEach(async () => {
    sealingKeyFile = join(await mkdtemp(join(tmpdir(), "sealing-")), "sealing-key.json");
  });

  test("seals with its public half", async () => {
    const { d: _, ...half } = KEY;
    await writeFile(sealingKeyFile, JSON.stringify(half));
    expect((await sealerFrom({ sealingKeyFile, sealingKey: undefined })).kid).toBe((await sealer()).kid);
  });

  test("is never created: a missing one is named with its setting and the remedy", async () => {
    const refused: unknown = await sealerFrom({ sealingKeyFile, sealingKey: undefined }).catch(
      (error: unknown) => error,
    );
    expect(refused).toBeInstanceOf(ConfigurationError);
    expect((refused as Error).message).toBe(
      `AGENT_RUNS_SEALING_KEY_FILE names ${sealingKeyFile}, which cannot be read (ENOENT): start the worker once, which ` +
        "creates it, or copy the output of `agent-runs sealing-key` there, readable for Paperclip's server",
    );
    await expect(readFile(sealingKeyFile)).rejects.toThrow("ENOENT");
  });

  test("is not looked at when the setting holds the key itself", async () => {
    await writeFile(sealingKeyFile, CANARY);
    const sealingKey = JSON.stringify(KEY);
    expect((await sealerFrom({ sealingKeyFile, sealingKey })).kid).toBe((await sealer()).kid);
  });
});
