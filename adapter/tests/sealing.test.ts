import { chmod, mkdir, mkdtemp, readdir, readFile, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { exportJWK, generateKeyPair } from "jose";
import { beforeEach, describe, expect, test } from "vitest";
import type { SealedRun } from "../src/contracts.ts";
import { sealerFrom, sealerOf, UnusableKey } from "../src/sealing.ts";
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
  expect(refused).toBeInstanceOf(UnusableKey);
  expect(String((refused as Error).stack)).not.toContain(CANARY);
  expect((refused as Error).cause).toBeUndefined();
  expect((refused as UnusableKey).fields).toEqual(["KEY"]);
});

describe("the key file", () => {
  let folder: string;
  const settings = () => ({ sealingKeyFile: join(folder, "state", "sealing-key.json"), production: false });

  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), "sealing-"));
  });

  test("is created for its owner only when it is missing, and used afterwards", async () => {
    const created = await sealerFrom(settings());
    const path = settings().sealingKeyFile;
    expect((await stat(path)).mode & 0o777).toBe(0o600);
    expect(await readdir(join(folder, "state"))).toEqual(["sealing-key.json"]);
    expect((await sealerFrom(settings())).kid).toBe(created.kid);
    const jwk = JSON.parse(await readFile(path, "utf8"));
    expect(Object.keys(jwk).sort()).toEqual(["crv", "d", "kid", "kty", "x", "y"]);
    const sealed = await created.seal(CONTENT);
    expect((await opened(sealed, jwk)).content).toEqual(CONTENT);
  });

  test("is one, however many start together", async () => {
    const together = await Promise.all(Array.from({ length: 16 }, () => sealerFrom(settings())));
    expect(new Set(together.map(({ kid }) => kid)).size).toBe(1);
    expect(await readdir(join(folder, "state"))).toEqual(["sealing-key.json"]);
  });

  test("is never created in production", async () => {
    await expect(sealerFrom({ ...settings(), production: true })).rejects.toThrow(
      /AGENT_RUNS_SEALING_KEY_FILE.*production/,
    );
    expect(await readdir(folder)).toEqual([]);
  });

  test("that cannot be read is named with the cause", async () => {
    await mkdir(settings().sealingKeyFile, { recursive: true });
    await expect(sealerFrom(settings())).rejects.toThrow(
      /AGENT_RUNS_SEALING_KEY_FILE names .*sealing-key.json, which cannot be read or created \(EISDIR\)/,
    );
  });

  test("is not looked at when the setting holds the key itself", async () => {
    await writeFile(join(folder, "key"), CANARY);
    await chmod(join(folder, "key"), 0o600);
    const fields = { sealingKeyFile: join(folder, "key"), sealingKey: JSON.stringify(KEY), production: true };
    expect((await sealerFrom(fields)).kid).toBe((await sealer()).kid);
  });
});
