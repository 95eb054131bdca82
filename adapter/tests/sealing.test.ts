import { randomBytes } from "node:crypto";
import { chmod, mkdir, mkdtemp, readdir, readFile, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { exportJWK, generateKeyPair } from "jose";
import { beforeEach, describe, expect, test } from "vitest";
import { InvalidRequest } from "../src/request/problems.ts";
import { sealerFrom, sealerOf, UnusableKey } from "../src/sealing.ts";
import { KEY, opened, SEALED, type SealedVector, sealer } from "./support/sealed-fields.ts";
import { fixture } from "./support/vectors.ts";

const CANARY = "canary-7a";

/** The same by the code of today: the fixture was written once. */
const today = SEALED.vectors.map(async (vector): Promise<SealedVector> => {
  const key = SEALED.keys.find((jwk) => jwk.kid === vector.kid);
  const { seal } = await sealerOf(JSON.stringify(key), "KEY");
  return { ...vector, name: `${vector.name}, today`, sealed: await seal(vector.kind, vector.opened) };
});

const sealedByEither: SealedVector[] = [
  ...SEALED.vectors,
  ...fixture("sealing/adapter.json").vectors,
  ...(await Promise.all(today)),
];

describe("both languages seal in one format", () => {
  test.each(sealedByEither)("$name", async (vector) => {
    const key = SEALED.keys.find((jwk) => jwk.kid === vector.kid);
    const { header, content } = await opened(vector.sealed, key);
    expect(content).toEqual(vector.opened);
    const { epk, ...fields } = header;
    expect(epk.crv).toBe(key?.crv);
    expect(fields).toEqual({
      alg: "ECDH-ES",
      enc: "A256GCM",
      kid: vector.kid,
      typ: `agent-runs.${vector.kind}`,
      cty: "json+deflate",
    });
  });
});

test("a sealed field opens unchanged, and is another text each time", async () => {
  const content = { runId: "run-1", env: { A: "é-𝄞" } };
  const { kid, seal } = await sealer();
  const [one, two] = await Promise.all([seal("secrets", content), seal("secrets", content)]);
  expect((await opened(one)).content).toEqual(content);
  expect(one).not.toBe(two);
  expect(kid).toBe(KEY.kid);
});

test("the public half alone seals", async () => {
  const { d: _, ...half } = KEY;
  const sealed = await (await sealerOf(JSON.stringify({ keys: [half] }), "KEY")).seal("secrets", { runId: "run-1" });
  expect((await opened(sealed)).content).toEqual({ runId: "run-1" });
});

test("the first key of a set is the one that seals", async () => {
  const { kid } = await sealerOf(JSON.stringify({ keys: [...SEALED.keys].reverse() }), "KEY");
  expect(kid).toBe(SEALED.keys.at(-1)?.kid);
});

test("a field too large for a history is refused before it is sent", async () => {
  const noise = randomBytes(600_000).toString("base64");
  const refused = (await sealer()).seal("prompt", { runId: "run-1", taskMarkdown: noise });
  await expect(refused).rejects.toThrow(InvalidRequest);
  await expect(refused).rejects.toThrow(
    /^the wake's prompt are too large: [0-9]+ bytes packed, 393216 are possible; shorten the task, templates or env$/,
  );
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
    const sealed = await created.seal("secrets", { runId: "run-1" });
    expect((await opened(sealed, jwk)).content).toEqual({ runId: "run-1" });
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
    expect((await sealerFrom(fields)).kid).toBe(KEY.kid);
  });
});
