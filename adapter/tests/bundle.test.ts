import { execFile } from "node:child_process";
import { mkdtemp, readFile, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { beforeAll, expect, test } from "vitest";

const ADAPTER = join(import.meta.dirname, "..");
/** Bytes of the entry: Temporal's client and its protocol are most of it. */
const LARGEST = 6 * 1024 * 1024;
const run = promisify(execFile);
let elsewhere: string;

/** What a new process with nothing else beside it says. */
async function asked(program: string): Promise<unknown> {
  const { stdout, stderr } = await run(process.execPath, ["--input-type=module", "--eval", program], {
    cwd: elsewhere,
  });
  expect(stderr).toBe("");
  return JSON.parse(stdout);
}

beforeAll(async () => {
  elsewhere = join(await mkdtemp(join(tmpdir(), "bundle-")), "adapter");
  await run(process.execPath, ["build.mjs", elsewhere], { cwd: ADAPTER });
});

test("the entry loads from a folder without packages, does nothing, and makes the adapter", async () => {
  const found = await asked(`
    const { createServerAdapter } = await import("./index.js");
    const adapter = createServerAdapter();
    const theirs = ["PipeWrap", "TTYWrap", "CloseReq"]; // Node 20 closes the file that it has loaded
    const working = process.getActiveResourcesInfo().filter((kind) => !theirs.includes(kind));
    console.log(JSON.stringify({ type: adapter.type, execute: typeof adapter.execute, working }));
  `);
  expect(found).toEqual({ type: "opencode_k8s", execute: "function", working: [] });
});

test("the command line's formatter loads there, too", async () => {
  expect(await asked('console.log(JSON.stringify(Object.keys(await import("./cli.js")).length > 0))')).toBe(true);
});

test("the page's parser is one CommonJS file that asks for nothing", async () => {
  const source = await readFile(join(elsewhere, "ui-parser.cjs"), "utf8");
  expect(source.length).toBeLessThan(50_000);
  const module = { exports: {} as Record<string, unknown> };
  new Function("exports", "module", "self", "globalThis", source)(module.exports, module, {}, {});
  expect(module.exports.parseStdoutLine).toBeTypeOf("function");
});

test("the entry stays small enough to load at once", async () => {
  expect((await stat(join(elsewhere, "index.js"))).size).toBeLessThan(LARGEST);
});
