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

describe("an event of OpenCode's, in place of Paperclip's own adapter", () => {
  const shown = (event: object) => parseStdoutLine(JSON.stringify({ timestamp: 1, sessionID: "ses_1", ...event }), TS);
  it.each([
    ["text", [{ kind: "assistant", ts: TS, text: "hi" }]],
    ["reasoning", [{ kind: "thinking", ts: TS, text: "hi" }]],
  ])("%s is shown as Paperclip's own parser does", (type, expected) => {
    expect(shown({ type, part: { text: " hi\n" } })).toEqual(expected);
    expect(shown({ type, part: { text: " " } })).toEqual([]);
  });
  it("a tool is a call with its result", () => {
    const tool = (state: object) => shown({ type: "tool_use", part: { tool: "bash", callID: "c", state } });
    const call = { kind: "tool_call", ts: TS, name: "bash", toolUseId: "c", input: { command: "ls" } };
    const result = { kind: "tool_result", ts: TS, toolUseId: "c", toolName: "bash" };
    const input = { command: "ls" };
    expect(tool({ status: "completed", input, output: "a" })).toEqual([
      call,
      { ...result, content: "a", isError: false },
    ]);
    expect(tool({ status: "error", input, error: "no" })).toEqual([call, { ...result, content: "no", isError: true }]);
  });
  it("the end of a step is a result, its start is nothing, an error is one", () => {
    const tokens = { input: 11, output: 7, reasoning: 2, cache: { read: 3, write: 0 } };
    const usage = { inputTokens: 11, outputTokens: 9, cachedTokens: 3, costUsd: 0.5 };
    expect(shown({ type: "step_finish", part: { reason: "stop", cost: 0.5, tokens } })).toEqual([
      { kind: "result", ts: TS, text: "stop", subtype: "stop", isError: false, errors: [], ...usage },
    ]);
    expect(shown({ type: "step_start", part: {} })).toEqual([]);
    const error = { name: "APIError", data: { message: "The provider answers 404." } };
    expect(shown({ type: "error", error })).toEqual([{ kind: "stderr", ts: TS, text: "The provider answers 404." }]);
  });
  it.each([{ type: "text", part: { text: 1 } }, { type: "tool_use", part: {} }, { type: "error" }, { part: {} }, {}])(
    "%j has another form, and is shown as it is",
    (event) => expect(parseStdoutLine(JSON.stringify(event), TS)).toMatchObject([{ kind: "stdout" }]),
  );
});

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
