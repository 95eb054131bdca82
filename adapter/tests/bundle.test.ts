import { execFile } from "node:child_process";
import { mkdtemp, readFile, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import vm from "node:vm";
import { beforeAll, expect, test } from "vitest";

const ADAPTER = join(import.meta.dirname, "..");
/** Bytes of the entry: Temporal's client and its protocol are most of it. */
const ENTRY_LIMIT = 6 * 1024 * 1024;
const run = promisify(execFile);
let folder: string;

/** The JSON that a program prints in a new process, in a folder with nothing but the bundle. */
async function outputOf(program: string): Promise<unknown> {
  const { stdout, stderr } = await run(process.execPath, ["--input-type=module", "--eval", program], {
    cwd: folder,
  });
  expect(stderr).toBe("");
  return JSON.parse(stdout);
}

beforeAll(async () => {
  folder = join(await mkdtemp(join(tmpdir(), "bundle-")), "adapter");
  await run(process.execPath, ["build.mjs", folder], { cwd: ADAPTER });
});

test("the entry loads from a folder without packages and creates the adapter, without open resources", async () => {
  const found = await outputOf(`
    const { createServerAdapter } = await import("./index.js");
    const adapter = createServerAdapter();
    const ofNode = ["PipeWrap", "TTYWrap", "CloseReq"]; // Node 20 closes the file that it has loaded
    const working = process.getActiveResourcesInfo().filter((kind) => !ofNode.includes(kind));
    console.log(JSON.stringify({ type: adapter.type, execute: typeof adapter.execute, working }));
  `);
  expect(found).toEqual({ type: "opencode_k8s", execute: "function", working: [] });
});

test("its second folder has the type of Paperclip's own OpenCode adapter, in the same code, also after a reload", async () => {
  const found = await outputOf(`
    const load = async (path) => (await import(path)).createServerAdapter();
    const [own, other] = [await load("./index.js"), await load("./opencode_local/index.js")];
    const reloaded = await load("./opencode_local/index.js?t=2");
    const same = [other, reloaded].map(({ execute }) => execute === own.execute);
    console.log(JSON.stringify({ types: [own, other, reloaded].map(({ type }) => type), same }));
  `);
  expect(found).toEqual({ types: ["opencode_k8s", "opencode_local", "opencode_local"], same: [true, false] });
});

test("the form is eleven fields with words: units of amounts, and what each choice means", async () => {
  const program = 'console.log(JSON.stringify((await import("./index.js")).createServerAdapter().getConfigSchema()))';
  type Field = { key: string; label: string; type: string; options?: { label: string; value: string }[] };
  const { fields } = (await outputOf(program)) as { fields: Field[] };
  expect(fields).toHaveLength(11);
  expect(fields.at(-1)).toMatchObject({
    key: "advanced",
    type: "textarea",
    label: expect.stringMatching(/YAML or JSON/),
  });
  for (const { type, label, options = [] } of fields) {
    if (type === "number") expect(label).toMatch(/\((seconds|US dollars)\)$/);
    if (type === "select") for (const choice of options) expect(choice.label).not.toBe(choice.value);
  }
});

test("the page's parser loads as Paperclip's worker loads it: one CommonJS file without imports", async () => {
  const source = await readFile(join(folder, "ui-parser.cjs"), "utf8");
  expect(source.length).toBeLessThan(50_000);
  const module = { exports: {} as { parseStdoutLine(line: string, ts: string): unknown } };
  const load = vm.runInNewContext("(source) => new Function('exports', 'module', 'self', 'globalThis', source)");
  load(source)(module.exports, module, {}, {});
  const shown = JSON.parse(JSON.stringify(module.exports.parseStdoutLine("[agent-runs] hi", "now")));
  expect(shown).toEqual([{ kind: "system", ts: "now", text: "hi" }]);
});

test("the entry stays small enough to load at once", async () => {
  expect((await stat(join(folder, "index.js"))).size).toBeLessThan(ENTRY_LIMIT);
});
