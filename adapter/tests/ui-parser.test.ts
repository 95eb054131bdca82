import vm from "node:vm";
import { describe, expect, it } from "vitest";
import { parseStdoutLine } from "../src/ui-parser.ts";

const TS = "2026-11-22T06:00:00.000Z";
const entries = (line: object) => parseStdoutLine(JSON.stringify({ type: "agent_run", ...line }), TS);

it("shows the entries of the transcript service, with the line's time", () => {
  const made = [
    { kind: "tool_call", name: "bash", input: { command: "ls" }, toolUseId: "c" },
    { kind: "tool_result", toolUseId: "c", toolName: "bash", content: "a", isError: false },
  ];
  expect(entries({ entries: made })).toEqual(made.map((entry) => ({ ...entry, ts: TS })));
  expect(entries({ entries: [] })).toEqual([]);
});

it.each([
  ["a blank line", "  ", []],
  ["plain text", " hello ", [{ kind: "stdout", ts: TS, text: "hello" }]],
  ["JSON of anybody else", '{"type":"text"}', [{ kind: "stdout", ts: TS, text: '{"type":"text"}' }]],
])("shows %s as it is", (_name, line, expected) => expect(parseStdoutLine(line, TS)).toEqual(expected));

describe("our own status lines", () => {
  it("are shown as the system's", () =>
    expect(entries({ event: "phase", message: "running on node-1" })).toEqual([
      { kind: "system", ts: TS, text: "running on node-1" },
    ]));
  it("show a warning as an error", () =>
    expect(entries({ event: "warning", message: "warning: not readable" })[0]?.kind).toBe("stderr"));

  it("show a gap as an error", () =>
    expect(entries({ event: "gap", message: "3 frames are missing" })[0]?.kind).toBe("stderr"));
  it("show model and session", () =>
    expect(entries({ event: "session", message: "", model: "a/b", sessionId: "ses_1" })).toEqual([
      { kind: "init", ts: TS, model: "a/b", sessionId: "ses_1" },
    ]));
});

it("a line of ours that Paperclip's own redaction broke is shown, and not as the agent's output", () => {
  const broken = '{"type":"agent_run","entries":[{"kind":"tool_call","input":{"command":"curl -u ***REDACTED*** x}}]}';
  expect(parseStdoutLine(broken, TS)).toEqual([{ kind: "system", ts: TS, text: broken }]);
});

it("nothing makes the parser throw", () => {
  const parts = [
    "",
    "}",
    ',"entries":[null,1,"x",[]]}',
    ',"entries":{}}',
    ',"message":{}}',
    "\u0000",
    "[".repeat(5000),
  ];
  for (const part of parts) expect(() => parseStdoutLine(`{"type":"agent_run"${part}`, TS)).not.toThrow();
});

it("the built file loads as Paperclip's worker loads it: CommonJS, without any import", async () => {
  const { buildSync } = await import("esbuild");
  const built = buildSync({
    ...{ entryPoints: [new URL("../src/ui-parser.ts", import.meta.url).pathname], bundle: true, write: false },
    ...{ platform: "neutral", format: "cjs", target: "es2020" },
  });
  const source = built.outputFiles?.[0]?.text ?? "";
  const module = { exports: {} as Record<string, unknown> };
  const load = vm.runInNewContext("(source) => new Function('exports', 'module', 'self', 'globalThis', source)") as (
    source: string,
  ) => (...scope: unknown[]) => void;
  load(source)(module.exports, module, {}, {});
  const parse = module.exports.parseStdoutLine as typeof parseStdoutLine;
  expect(JSON.parse(JSON.stringify(parse('{"type":"agent_run","message":"hi"}', TS)))).toEqual([
    { kind: "system", ts: TS, text: "hi" },
  ]);
  expect(source.length).toBeLessThan(50_000);
});
