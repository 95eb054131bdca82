/** A run's log as plain text: sentences of ours, an agent's texts and tools, bounded, and nothing that a reader could take for ours. */

import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { CALL_BYTES, callsOf, RunLog } from "../src/log.ts";
import { logFormatFor } from "../src/log-format.ts";
import { readable, readableStatus } from "../src/readable.ts";

const FIXTURES = join(import.meta.dirname, "..", "..", "tests", "fixtures", "opencode-logged");

function shown(text: string, stream = "stdout"): string {
  return readable({ stream, text })
    .map((each) => each.text)
    .join("\n");
}

const event = (type: string, part: unknown) => JSON.stringify({ type, sessionID: "ses_1", part });
const toolUse = (tool: string, state: unknown) => event("tool_use", { type: "tool", tool, callID: "c", state });

describe("what an agent did reads as text", () => {
  it("its texts stand for themselves", () => {
    expect(shown(event("text", { text: "Here I go.\nSecond line." }))).toBe("Here I go.\nSecond line.");
    expect(shown(event("reasoning", { text: "I look around." }))).toBe("(thinking) I look around.");
  });

  it("a tool call is one line with its subject, and its result is indented below", () => {
    const state = { status: "completed", input: { command: "ls -l" }, output: "a\nb" };
    expect(shown(toolUse("bash", state))).toBe("> bash: ls -l\n  a\n  b");
  });

  it("a failed tool call says so", () => {
    expect(shown(toolUse("read", { status: "error", input: { filePath: "x" }, error: "not found" }))).toBe(
      "> read: x\n  failed: not found",
    );
    const state = { status: "completed", input: { command: "false" }, output: "oops", metadata: { exit: 1 } };
    expect(shown(toolUse("bash", state))).toContain("failed: oops");
  });

  it("an error goes to stderr", () => {
    const line = JSON.stringify({ type: "error", error: { name: "APIError", data: { message: "model unknown" } } });
    expect(readable({ stream: "stdout", text: line })).toEqual([{ stream: "stderr", text: "error: model unknown" }]);
  });

  it("a step's begin and ordinary end are not shown; an unusual end is", () => {
    expect(shown(event("step_start", {}))).toBe("");
    expect(shown(event("step_finish", { reason: "stop", tokens: { input: 1 } }))).toBe("");
    expect(shown(event("step_finish", { reason: "tool-calls" }))).toBe("");
    expect(shown(event("step_finish", { reason: "length" }))).toBe("(step ended: length)");
  });

  it("a line that is no event is shown as it is", () => {
    expect(shown("plain words")).toBe("plain words");
    expect(shown("{broken")).toBe("{broken");
    expect(shown('{"no":"type"}')).toBe('{"no":"type"}');
  });
});

describe("OpenCode's own log", () => {
  it.each([
    "timestamp=2026-11-21T23:32:52.788Z level=INFO run=0d message=loading",
    "timestamp=2026-11-21T23:32:52.788Z level=DEBUG run=0d message=loading",
    "\u001b[90mtimestamp=2026-11-21T23:32:52.788Z level=INFO run=0d\u001b[0m message=loading",
    "INFO  2026-11-21T23:32:52 +0ms service=default version=1.0",
  ])("is left out where it reports nothing wrong: %s", (line) => {
    expect(readable({ stream: "stderr", text: line })).toEqual([]);
  });

  it.each(["timestamp=2026-11-21T23:32:52.788Z level=ERROR run=0d message=failed", "Error: Session not found"])(
    "is shown where it does: %s",
    (line) => {
      expect(readable({ stream: "stderr", text: line })).toEqual([{ stream: "stderr", text: line }]);
    },
  );

  it("of every recorded run has no JSON and no ordinary line", () => {
    let count = 0;
    for (const folder of readdirSync(FIXTURES)) {
      for (const file of ["stdout", "stderr"]) {
        const name = readdirSync(join(FIXTURES, folder)).find((each) => each.startsWith(file));
        if (name === undefined) continue;
        for (const text of readFileSync(join(FIXTURES, folder, name), "utf8").split("\n")) {
          const lines = shown(text, file);
          if (lines) count += 1;
          expect(lines).not.toMatch(/level=INFO|^\{"type"/m);
        }
      }
    }
    expect(count).toBeGreaterThan(50);
  });
});

describe("hostile output", () => {
  it.each([
    ["colours", "\u001b[31mred\u001b[0m", "red"],
    ["a title", "\u001b]0;owned\u0007text", "text"],
    ["a moved cursor", "one\u001b[2K\u001b[1Atwo", "onetwo"],
    ["control characters", "a\u0000b\u0008c\u007fd\u009be", "abcde"],
    ["turned directions", "a\u202eb\u2066c\u200f", "abc"],
    ["invisible tags", "a\u{e0041}\u200bb", "ab"],
    ["half a character", "a\ud83d", "a\ufffd"],
  ])("loses %s", (_, raw, clean) => {
    expect(shown(event("text", { text: raw }))).toBe(clean);
    expect(shown(raw)).toBe(clean);
    expect(shown(raw, "stderr")).toBe(clean);
  });

  it.each([
    "[agent-runs] succeeded",
    "  [AGENT-RUNS] succeeded",
    "[agent\u200c-runs] succeeded",
    "\u200b[agent-runs] succeeded",
    "\uff3bagent-runs] succeeded",
    "hello\n[agent-runs] succeeded",
    "hello\r[agent-runs] succeeded",
    "hello\u2028[agent-runs] succeeded",
    "[paperclip] Run finished",
  ])("cannot begin a line as ours or Paperclip's: %j", (forged) => {
    const everywhere = [
      shown(forged),
      shown(forged, "stderr"),
      shown(event("text", { text: forged })),
      shown(event("reasoning", { text: `x\n${forged}` })),
      shown(toolUse("bash", { status: "completed", input: { command: forged }, output: forged })),
    ];
    for (const text of everywhere) {
      for (const line of text.split("\n")) {
        const visible = line
          .normalize("NFKC")
          .replace(/\p{Cf}/gu, "")
          .trim()
          .toLowerCase();
        expect(visible).not.toMatch(/^\[(agent-runs|paperclip)\]/);
      }
    }
  });

  it("of the form of a status line is shown as text", () => {
    const forged = '{"type":"agent_run","event":"outcome","message":"succeeded"}';
    expect(shown(forged)).toBe(forged);
  });

  it("at the begin of a piece of a long line cannot look like ours", () => {
    const long = `${"x".repeat(CALL_BYTES - 200)}[agent-runs] succeeded`;
    expect(callsOf(long).every((call) => !call.startsWith("[agent-runs]"))).toBe(true);
  });

  it.each([
    ["a text", event("text", { text: "x\n".repeat(50_000) })],
    ["a long line", event("text", { text: "x".repeat(400_000) })],
    ["a result", toolUse("bash", { status: "completed", input: {}, output: "y\n".repeat(100_000) })],
    [
      "a diff",
      toolUse("edit", { status: "completed", input: {}, output: "", metadata: { diff: "+z\n".repeat(9999) } }),
    ],
    ["arguments", toolUse("bash", { status: "running", input: { command: "c".repeat(100_000) } })],
    ["no event", "n".repeat(400_000)],
    ["escape codes", "\u001b]".repeat(100_000)],
    ["blanks", `${" ".repeat(400_000)}x`],
  ])("is bounded, with the size of what is left out: %s", (_, text) => {
    const began = performance.now();
    const result = shown(text);
    expect(result.length).toBeLessThan(13_000);
    expect(performance.now() - began).toBeLessThan(5000);
    for (const call of callsOf(result)) expect(Buffer.byteLength(call)).toBeLessThan(CALL_BYTES);
  });

  it("that is too long to be parsed is only counted", () => {
    expect(shown(event("text", { text: "x".repeat(600_000) }))).toMatch(/^\(a line of 600\d+ characters/);
  });
});

describe("our own status lines", () => {
  it("are sentences that say whose they are; faults go to stderr", () => {
    expect(readableStatus("started", "run 1 started")).toEqual({
      stream: "stdout",
      text: "[agent-runs] run 1 started",
    });
    expect(readableStatus("gap", "5 lines are missing")?.stream).toBe("stderr");
    expect(readableStatus("session", "")).toBeUndefined();
  });

  it("stay one line whatever an error message holds", () => {
    expect(readableStatus("outcome", "failed: a\n[agent-runs] b\u001b[31m")?.text).toBe(
      "[agent-runs] failed: a [agent-runs] b",
    );
  });
});

describe("the log of a run", () => {
  it("in text holds no JSON, and counts the agent's lines", async () => {
    const chunks: string[] = [];
    const log = new RunLog(async (stream, chunk) => void chunks.push(`${stream} ${chunk}`), "text");
    await log.status("started", "run 1 started", { workflowId: "w" });
    await log.session({ attempt: 1, sequence: 1, stream: "stdout", text: event("text", { text: "a" }) }, "m");
    await log.line({ attempt: 1, sequence: 1, stream: "stdout", text: event("text", { text: "a\nb" }) });
    await log.line({ attempt: 1, sequence: 2, stream: "stderr", text: "timestamp=1 level=INFO run=1" });
    await log.close();
    expect(chunks).toEqual(["stdout [agent-runs] run 1 started\n", "stdout a\nb\n"]);
    expect(log.lines).toBe(2);
  });

  it("in place of Paperclip's own OpenCode adapter holds OpenCode's events, and text", async () => {
    const chunks: string[] = [];
    const log = new RunLog(async (stream, chunk) => void chunks.push(`${stream} ${chunk}`), "events");
    await log.status("started", "run 1 started");
    const long = event("text", { text: "x".repeat(20_000) });
    const texts = [event("text", { text: "a" }), long, "plain", '{"type":"agent_run","event":"outcome"}'];
    for (const [index, text] of texts.entries()) {
      await log.line({ attempt: 1, sequence: index + 1, stream: "stdout", text });
    }
    await log.line({ attempt: 1, sequence: 9, stream: "stderr", text: "timestamp=1 level=INFO run=1" });
    await log.close();
    expect(chunks.length).toBe(5);
    expect(chunks[0]).toBe("stdout [agent-runs] run 1 started\n");
    expect(chunks[1]).toBe(`stdout ${texts[0]}\n`);
    expect(JSON.parse(chunks[2]?.slice("stdout ".length) ?? "")).toMatchObject({ type: "text", truncated: true });
    expect(chunks[3]).toBe("stdout plain\n");
    expect(logFormatFor("auto", "2026.916.1", "opencode_local")).toBe("events");
  });

  it("is text only where the Paperclip is known to load no parser, unless a setting decides", () => {
    expect(logFormatFor(undefined, "2026.916.1")).toBe("text");
    expect(logFormatFor("auto", "2026.916.1")).toBe("text");
    expect(logFormatFor(undefined, "2026.999.0")).toBe("json");
    expect(logFormatFor(undefined, undefined)).toBe("json");
    expect(logFormatFor("json", "2026.916.1")).toBe("json");
    expect(logFormatFor(" text ", undefined)).toBe("text");
  });
});
