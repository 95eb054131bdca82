import { readdirSync, readFileSync } from "node:fs";
import vm from "node:vm";
import { describe, expect, it } from "vitest";
import { parseStdoutLine } from "../src/ui-parser.ts";

const TS = "2026-11-22T06:00:00.000Z";
const captures = new URL("../../tests/fixtures/opencode/", import.meta.url);
const entries = (event: unknown) => parseStdoutLine(typeof event === "string" ? event : JSON.stringify(event), TS);

function recordedEvents(): { capture: string; line: string }[] {
  return readdirSync(captures, { withFileTypes: true })
    .filter((found) => found.isDirectory())
    .flatMap(({ name }) => {
      const files = readdirSync(new URL(`${name}/`, captures)).filter((file) => file.endsWith("events.jsonl"));
      return files.flatMap((file) =>
        readFileSync(new URL(`${name}/${file}`, captures), "utf8")
          .split("\n")
          .filter((line) => line.startsWith('{"type"') && line.endsWith("}"))
          .map((line) => ({ capture: name, line })),
      );
    });
}

describe("recorded output of the real OpenCode", () => {
  const events = recordedEvents();

  it("exists", () => expect(events.length).toBeGreaterThan(300));

  it("is never shown as plain output, and no event is dropped", () => {
    const odd = events.filter(({ line }) => {
      const shown = parseStdoutLine(line, TS);
      return shown.length === 0 || shown.some((entry) => entry.kind === "stdout" || entry.ts !== TS);
    });
    // an empty text or reasoning block has nothing to show
    expect(odd.filter(({ line }) => !/"text":"\s*"/.test(line)).map(({ capture, line }) => [capture, line])).toEqual(
      [],
    );
  });

  it("shows a tool call with its result under one id", () => {
    const shown = events.flatMap(({ line }) => parseStdoutLine(line, TS));
    const calls = shown.filter((entry) => entry.kind === "tool_call");
    const results = shown.filter((entry) => entry.kind === "tool_result");
    expect(calls.length).toBeGreaterThan(50);
    expect(results.map((entry) => entry.toolUseId)).toEqual(calls.map((entry) => entry.toolUseId));
  });

  it("shows an edit as a diff", () => {
    const edit = events.find(({ line }) => line.includes('"tool":"edit"') && line.includes('"diff"'))?.line ?? "";
    const changes = parseStdoutLine(edit, TS).filter((entry) => entry.kind === "diff");
    expect(changes.map((entry) => entry.changeType)).toEqual([
      ...["file_header", "file_header", "file_header", "file_header"],
      ...["hunk", "context", "remove", "add", "context"],
    ]);
  });

  it("calls a shell command that failed an error", () => {
    const failed = events.find(({ line }) => /"tool":"bash"/.test(line) && /"exit":3[,}]/.test(line))?.line ?? "";
    expect(parseStdoutLine(failed, TS).find((entry) => entry.kind === "tool_result")).toMatchObject({ isError: true });
  });
});

describe("the existing adapters' mapping", () => {
  it.each([
    ["a blank line", "  ", []],
    ["plain text", " hello ", [{ kind: "stdout", ts: TS, text: "hello" }]],
    ["a JSON primitive", "42", [{ kind: "stdout", ts: TS, text: "42" }]],
    ["an array", "[1]", []],
    ["text", { type: "text", part: { text: " hi" } }, [{ kind: "assistant", ts: TS, text: " hi" }]],
    ["empty text", { type: "text", part: { text: "" } }, []],
    ["reasoning", { type: "reasoning", part: { text: " hm " } }, [{ kind: "thinking", ts: TS, text: "hm" }]],
    ["thinking", { type: "thinking", part: { thinking: "hm" } }, [{ kind: "thinking", ts: TS, text: "hm" }]],
    ["blank thinking", { type: "thinking", part: { thinking: " ", text: "x" } }, []],
    ["a step", { type: "step_start", part: {} }, [{ kind: "system", ts: TS, text: "Starting step…" }]],
    [
      "a step's end",
      { type: "step_finish", part: { tokens: { output: 3, reasoning: 2 } } },
      [
        {
          ...{ kind: "result", ts: TS, text: "Step finished: done", inputTokens: 0, outputTokens: 5, cachedTokens: 0 },
          ...{ costUsd: 0, subtype: "step_finish", isError: false, errors: [] },
        },
      ],
    ],
    [
      "an error",
      { type: "error", error: { name: "APIError", data: { message: "no credit" } } },
      [{ kind: "stderr", ts: TS, text: "no credit" }],
    ],
    ["an error's name", { type: "error", error: { name: "Odd" } }, [{ kind: "stderr", ts: TS, text: "Odd" }]],
    [
      "both kinds of blocks in order",
      {
        type: "assistant",
        part: {
          message: {
            content: [
              { type: "thinking", thinking: "t" },
              { type: "text", text: " a " },
            ],
          },
        },
      },
      [
        { kind: "thinking", ts: TS, text: "t" },
        { kind: "assistant", ts: TS, text: "a" },
      ],
    ],
    [
      "a user's tool result",
      {
        type: "user",
        part: {
          message: {
            content: [{ type: "tool_result", tool_use_id: "u", content: [{ text: "part1" }, { text: "part2" }] }],
          },
        },
      },
      [{ kind: "tool_result", ts: TS, toolUseId: "u", content: "part1part2", isError: false }],
    ],
    ["no content", { type: "user", part: {} }, []],
    ["an unknown type", { type: "odd" }, []],
    ["a type that every object inherits", { type: "constructor" }, []],
    ["no type", {}, []],
  ])("%s", (_name, event, expected) => expect(entries(event)).toEqual(expected));

  it.each([
    ["running", { status: "running", description: "list" }, ["tool_call"]],
    ["completed", { status: "completed", output: "x" }, ["tool_call", "tool_result"]],
    ["done", { status: "done" }, ["tool_call", "tool_result"]],
    ["error", { status: "error" }, ["tool_call", "tool_result"]],
  ])("a tool that is %s", (_name, state, kinds) => {
    const shown = entries({ type: "tool_use", part: { tool: "bash", state } });
    expect(shown.map((entry) => entry.kind)).toEqual(kinds);
    expect(shown[0]).toMatchObject({ name: "bash", toolUseId: "bash" });
  });
});

describe("our own status lines", () => {
  it("are shown as the system's", () =>
    expect(entries({ type: "agent_run", event: "phase", message: "running on node-1" })).toEqual([
      { kind: "system", ts: TS, text: "running on node-1" },
    ]));
  it("show a gap as an error", () =>
    expect(entries({ type: "agent_run", event: "gap", message: "3 frames are missing" })[0]?.kind).toBe("stderr"));
  it("show model and session", () =>
    expect(entries({ type: "agent_run", event: "session", model: "a/b", sessionId: "ses_1" })).toEqual([
      { kind: "init", ts: TS, model: "a/b", sessionId: "ses_1" },
    ]));
  it("show a piece of a long plain line, and not that of an event which was shown already", () => {
    expect(entries({ type: "agent_run", event: "chunk", of: "text", text: "abc" })).toEqual([
      { kind: "stdout", ts: TS, text: "abc" },
    ]);
    expect(entries({ type: "agent_run", event: "chunk", of: "text", stream: "stderr", text: "abc" })).toEqual([
      { kind: "stderr", ts: TS, text: "abc" },
    ]);
    expect(entries({ type: "agent_run", event: "chunk", of: "event", text: "abc" })).toEqual([]);
  });
});

it("an event that Paperclip's own redaction broke is shown, and not as the agent's output", () => {
  const broken =
    '{"type":"tool_use","part":{"tool":"bash","state":{"input":{"command":"curl --oauth2-bearer ***REDACTED*** x}}}}';
  expect(parseStdoutLine(broken, TS)).toEqual([{ kind: "system", ts: TS, text: broken }]);
  expect(parseStdoutLine('{"type":"other", broken', TS)[0]?.kind).toBe("stdout");
});

it("nothing makes the parser throw", () => {
  const hostile = [
    "null",
    '"x"',
    '{"type":1}',
    '{"type":"text","part":null}',
    '{"type":"tool_use","part":{"state":[]}}',
  ];
  const deep = `${"[".repeat(5000)}${"]".repeat(5000)}`;
  for (const line of [...hostile, deep, '{"type":"user","part":{"message":{"content":[null,1]}}}', "\u0000", "{"]) {
    expect(() => parseStdoutLine(line, TS)).not.toThrow();
  }
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
  expect(JSON.parse(JSON.stringify(parse('{"type":"text","part":{"text":"hi"}}', TS)))).toEqual([
    { kind: "assistant", ts: TS, text: "hi" },
  ]);
  expect(source.length).toBeLessThan(50_000);
});
