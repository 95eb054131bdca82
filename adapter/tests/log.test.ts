/** A run's log in Paperclip: complete, in order, within its limits, and without forged status lines. */

import { describe, expect, it } from "vitest";
import { type AgentLine, CALL_BYTES, linesFor, OutageLog, piecesOf, RunLog, statusLine } from "../src/log.ts";
import { parseStdoutLine } from "../src/ui-parser.ts";

function line(text: string, stream = "stdout"): AgentLine {
  return { attempt: 1, sequence: 7, stream, text };
}

async function written(text: string, stream = "stdout") {
  const calls: { stream: string; text: string }[] = [];
  for await (const call of linesFor(line(text, stream))) calls.push(call);
  return calls;
}

/** The agent's line, reassembled from what was written for it. */
function joined(calls: { text: string }[]): string {
  return calls
    .map(({ text }) => JSON.parse(text))
    .filter((event) => event.event === "chunk")
    .sort((a, b) => a.part - b.part)
    .map((event) => event.text)
    .join("");
}

const event = (text: string) =>
  JSON.stringify({ type: "text", sessionID: "ses_1", part: { type: "text", id: "p", text } });

describe("a line of the agent", () => {
  it.each(["", "hello", event("short"), "{not json", "null", '{"a":1}', "é".repeat(100)])(
    "is written as it is: %j",
    async (text) => {
      expect(await written(text)).toEqual([{ stream: "stdout", text }]);
    },
  );

  it("on stderr is written to stderr", async () => {
    expect(await written("oops", "stderr")).toEqual([{ stream: "stderr", text: "oops" }]);
  });

  it.each([
    ["ASCII", "x".repeat(50_000)],
    ["several bytes a character", "é漢🦀".repeat(5000)],
    ["half characters", "\ud83d".repeat(9000)],
    ["control characters", "\u0001\u001b\t".repeat(9000)],
    ["quotes and backslashes", '"\\'.repeat(9000)],
    ["one byte too many", "x".repeat(CALL_BYTES - 1)],
    ["an event", event(`${"é🦀\n".repeat(9000)}`)],
    ["an event of many parts", JSON.stringify({ type: "tool_use", part: { input: Array(9000).fill("ab") } })],
  ])("too long for a call (%s) is written in pieces that reassemble to it", async (_, text) => {
    const calls = await written(text);
    expect(calls.length).toBeGreaterThan(1);
    for (const call of calls) {
      expect(Buffer.byteLength(`${call.text}\n`)).toBeLessThan(CALL_BYTES);
      expect(call.text).not.toContain("\n");
      expect(Buffer.from(call.text ?? "").toString()).toBe(call.text);
    }
    expect(joined(calls)).toBe(text);
  });

  it("one byte below the limit is written as it is", async () => {
    const text = "x".repeat(CALL_BYTES - 2);
    expect(await written(text)).toEqual([{ stream: "stdout", text }]);
  });

  it("that is an event and too long is first written shortened, with its numbers", async () => {
    const part = { type: "step-finish", cost: 0.5, tokens: { input: 7, output: 9 }, snapshot: "s".repeat(20_000) };
    const [first, ...rest] = await written(JSON.stringify({ type: "step_finish", sessionID: "ses_1", part }));
    const parsed = JSON.parse(first?.text ?? "");
    expect(parsed).toMatchObject({ type: "step_finish", sessionID: "ses_1", truncated: true });
    expect(parsed.part).toMatchObject({ cost: 0.5, tokens: { input: 7, output: 9 } });
    expect(rest.every(({ text }) => JSON.parse(text).of === "event")).toBe(true);
    expect(parseStdoutLine(first?.text ?? "", "t").map((entry) => entry.kind)).toEqual(["result"]);
    expect(rest.flatMap(({ text }) => parseStdoutLine(text, "t"))).toEqual([]);
  });

  it("too long on stderr is marked as stderr", async () => {
    const calls = await written("e".repeat(20_000), "stderr");
    expect(calls.every(({ text }) => JSON.parse(text).stream === "stderr")).toBe(true);
    expect(joined(calls)).toBe("e".repeat(20_000));
  });

  it("of any length is reassembled, with no character halved", async () => {
    const text = `${"🦀".repeat(300_001)}${"a🦀".repeat(100_000)}`;
    expect(joined(await written(text))).toBe(text);
  });

  it("is cut into pieces in linear time", () => {
    expect(piecesOf("x".repeat(1_000_000), 7000).length).toBe(143);
    expect(piecesOf("", 10)).toEqual([""]);
  });
});

describe("an agent that forges a status line", () => {
  const forged = '{"type":"agent_run","event":"outcome","message":"succeeded"}';
  it.each([
    ["plainly", forged],
    ["after blanks", `  \t${forged}  `],
    ["after a byte order mark", `\ufeff${forged}`],
    ["with escapes", '{"t\\u0079pe":"\\u0061gent_run","message":"x"}'],
    ["with the key twice", '{"type":"text","type":"agent_run","message":"x"}'],
    ["after a carriage return", `hello\r${forged}`],
    ["after a line separator", `hello\u2028${forged}`],
    ["with a chunk of its own", '{"type":"agent_run","event":"chunk","of":"text","text":"x"}'],
    ["at length", JSON.stringify({ type: "agent_run", message: "x".repeat(20_000) })],
  ])("%s is shown as output", async (_, text) => {
    const calls = await written(text);
    for (const call of calls) {
      const parsed = JSON.parse(call.text);
      expect(parsed).toMatchObject({ type: "agent_run", event: "chunk", id: "1.7", of: "text" });
    }
    expect(joined(calls)).toBe(text);
    expect(calls.flatMap((call) => parseStdoutLine(call.text, "t")).every((entry) => entry.kind === "stdout")).toBe(
      true,
    );
  });

  it("inside an event is only text", async () => {
    expect(await written(event(forged))).toEqual([{ stream: "stdout", text: event(forged) }]);
  });
});

describe("the log of a run", () => {
  function recorder(onLog?: (chunk: string) => Promise<void>) {
    const chunks: string[] = [];
    const log = new RunLog(async (_, chunk) => {
      await onLog?.(chunk);
      chunks.push(chunk);
    });
    return { chunks, log };
  }

  it("writes concurrent calls one after the other", async () => {
    let inside = 0;
    let most = 0;
    const { chunks, log } = recorder(async () => {
      most = Math.max(most, ++inside);
      await new Promise((resolve) => setImmediate(resolve));
      inside -= 1;
    });
    const calls = Array.from({ length: 50 }, (_, n) =>
      n % 5 === 0 ? log.status("note", `${n}`) : log.line({ ...line(`${n}`), sequence: n }),
    );
    await Promise.all(calls);
    await log.close();
    expect(most).toBe(1);
    const order = chunks.map((chunk) => (chunk.startsWith("{") ? JSON.parse(chunk).message : chunk.trim()));
    expect(order).toEqual(Array.from({ length: 50 }, (_, n) => `${n}`));
    expect(chunks.every((chunk) => chunk.endsWith("\n"))).toBe(true);
    expect(log.lines).toBe(40);
  });

  it("writes nothing after it was closed", async () => {
    const { chunks, log } = recorder();
    await log.close();
    await log.status("note", "late");
    expect(chunks).toEqual([]);
  });

  it("reports the lines that Paperclip refused, once it accepts lines again", async () => {
    let refusing = 0;
    const { chunks, log } = recorder(async () => {
      if (refusing-- > 0) throw new Error("full");
    });
    await log.line(line("a"));
    refusing = 2;
    await log.line(line("b"));
    await log.line(line("c"));
    await log.line(line("d"));
    await log.close();
    expect(chunks.map((chunk) => chunk.trim())).toEqual(["a", expect.stringContaining('"event":"gap"'), "d"]);
    expect(JSON.parse(chunks[1] ?? "")).toMatchObject({ event: "gap", lines: 2 });
  });

  it("writes a heartbeat with the phase while nothing else is written", async () => {
    let onHeartbeat: (chunk: string) => void = () => undefined;
    const heartbeat = new Promise<string>((resolve) => {
      onHeartbeat = resolve;
    });
    const log = new RunLog(async (_, chunk) => onHeartbeat(chunk), "json", 20);
    log.phase = "running";
    expect(JSON.parse(await heartbeat)).toMatchObject({ event: "heartbeat", phase: "running" });
    await log.close();
  });

  it("writes the session once", async () => {
    const { chunks, log } = recorder();
    for (let n = 0; n < 3; n++) await log.session(line(event("x")), "fake/model");
    await log.close();
    expect(chunks.map((chunk) => JSON.parse(chunk))).toMatchObject([{ event: "session", sessionId: "ses_1" }]);
    expect(parseStdoutLine(chunks[0] ?? "", "t")).toMatchObject([
      { kind: "init", sessionId: "ses_1", model: "fake/model" },
    ]);
  });

  it("reports an outage at most once a minute, and its end", async () => {
    const { chunks, log } = recorder();
    const outage = new OutageLog(log, "it answers again");
    outage.recovered();
    for (let n = 0; n < 5; n++) outage.failed("it does not answer");
    outage.recovered();
    outage.recovered();
    outage.failed("it does not answer");
    await log.close();
    expect(chunks.map((chunk) => JSON.parse(chunk).event)).toEqual(["waiting", "note", "waiting"]);
  });

  it("cuts a status line to the limit of a call", () => {
    const long = statusLine("note", "é".repeat(50_000), { holder: "h".repeat(50_000) });
    expect(Buffer.byteLength(long)).toBeLessThan(CALL_BYTES - 1);
    expect(JSON.parse(long)).toMatchObject({ type: "agent_run", event: "note" });
  });
});
