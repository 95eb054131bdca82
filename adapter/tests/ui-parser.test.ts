import { describe, expect, it } from "vitest";
import { parseStdoutLine } from "../src/ui-parser.ts";

const TS = "2026-11-22T06:00:00.000Z";

it.each([
  ["a blank line", "  ", []],
  ["plain text", " hello ", [{ kind: "stdout", ts: TS, text: "hello" }]],
  ["JSON of anybody else", '{"type":"text"}', [{ kind: "stdout", ts: TS, text: '{"type":"text"}' }]],
])("shows %s as it is", (_name, line, expected) => expect(parseStdoutLine(line, TS)).toEqual(expected));

describe("an event", () => {
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
    expect(tool({ status: "running", input })).toEqual([call]);
  });
  it("the end of a step is a result, an error is one", () => {
    const tokens = { input: 11, output: 7, reasoning: 2, cache: { read: 3, write: 0 } };
    const usage = { inputTokens: 11, outputTokens: 9, cachedTokens: 3, costUsd: 0.5 };
    expect(shown({ type: "step_finish", part: { reason: "stop", cost: 0.5, tokens } })).toEqual([
      { kind: "result", ts: TS, text: "stop", subtype: "stop", isError: false, errors: [], ...usage },
    ]);
    const error = { name: "APIError", data: { message: "The provider answers 404." } };
    expect(shown({ type: "error", error })).toEqual([{ kind: "stderr", ts: TS, text: "The provider answers 404." }]);
  });
  it.each([{ type: "text", part: { text: 1 } }, { type: "tool_use", part: {} }, { type: "error" }, { part: {} }, {}])(
    "%j has another form, and is shown as it is",
    (event) => expect(parseStdoutLine(JSON.stringify(event), TS)).toMatchObject([{ kind: "stdout" }]),
  );
});

it("our own status lines are shown as the system's", () =>
  expect(parseStdoutLine("[agent-runs] the run is running", TS)).toEqual([
    { kind: "system", ts: TS, text: "the run is running" },
  ]));

it("an event that Paperclip's own redaction broke is shown", () => {
  const broken = '{"type":"tool_use","part":{"state":{"input":{"command":"curl -u ***REDACTED*** x}}}}';
  expect(parseStdoutLine(broken, TS)).toEqual([{ kind: "stdout", ts: TS, text: broken }]);
});

it("nothing makes the parser throw", () => {
  const parts = ["", "}", ',"part":[]}', ',"part":{"text":{}}}', ',"error":{}}', "\u0000", "[".repeat(5000)];
  for (const type of ["text", "tool_use", "step_finish", "error", "odd"])
    for (const part of parts) expect(() => parseStdoutLine(`{"type":"${type}"${part}`, TS)).not.toThrow();
});
