/** What reaches Paperclip's log: whole, in order, in bounds, and never ours when it is the agent's. */

import { describe, expect, it } from "vitest";
import { type AgentLine, CALL_BYTES, linesFor, piecesOf, RunLog, statusLine, Trouble } from "../src/log.ts";
import { parseStdoutLine } from "../src/ui-parser.ts";

function line(text: string, stream = "stdout"): AgentLine {
  return { attempt: 1, sequence: 7, stream, text };
}

async function written(text: string, stream = "stdout") {
  const calls: { stream: string; text: string }[] = [];
  for await (const call of linesFor(line(text, stream))) calls.push(call);
  return calls;
}

/** The agent's line again, from what was written for it. */
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

  it("on stderr stays there", async () => {
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
  ])("too long for a call (%s) comes in pieces that give it back", async (_, text) => {
    const calls = await written(text);
    expect(calls.length).toBeGreaterThan(1);
    for (const call of calls) {
      expect(Buffer.byteLength(`${call.text}\n`)).toBeLessThan(CALL_BYTES);
      expect(call.text).not.toContain("\n");
      expect(Buffer.from(call.text ?? "").toString()).toBe(call.text);
    }
    expect(joined(calls)).toBe(text);
  });

  it("one byte below the bound is whole", async () => {
    const text = "x".repeat(CALL_BYTES - 2);
    expect(await written(text)).toEqual([{ stream: "stdout", text }]);
  });

  it("that is too long an event is first told shortened, with its numbers", async () => {
    const part = { type: "step-finish", cost: 0.5, tokens: { input: 7, output: 9 }, snapshot: "s".repeat(20_000) };
    const [first, ...rest] = await written(JSON.stringify({ type: "step_finish", sessionID: "ses_1", part }));
    const told = JSON.parse(first?.text ?? "");
    expect(told).toMatchObject({ type: "step_finish", sessionID: "ses_1", truncated: true });
    expect(told.part).toMatchObject({ cost: 0.5, tokens: { input: 7, output: 9 } });
    expect(rest.every(({ text }) => JSON.parse(text).of === "event")).toBe(true);
    expect(parseStdoutLine(first?.text ?? "", "t").map((entry) => entry.kind)).toEqual(["result"]);
    expect(rest.flatMap(({ text }) => parseStdoutLine(text, "t"))).toEqual([]);
  });

  it("too long on stderr says where it came from", async () => {
    const calls = await written("e".repeat(20_000), "stderr");
    expect(calls.every(({ text }) => JSON.parse(text).stream === "stderr")).toBe(true);
    expect(joined(calls)).toBe("e".repeat(20_000));
  });

  it("of any length, and with no character halved at any border, comes back", async () => {
    const text = `${"🦀".repeat(300_001)}${"a🦀".repeat(100_000)}`;
    expect(joined(await written(text))).toBe(text);
  });

  it("takes time in proportion to its length, in slices", () => {
    expect(piecesOf("x".repeat(1_000_000), 7000).length).toBe(143);
    expect(piecesOf("", 10)).toEqual([""]);
  });
});

describe("an agent that plays us", () => {
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
      const told = JSON.parse(call.text);
      expect(told).toMatchObject({ type: "agent_run", event: "chunk", id: "1.7", of: "text" });
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

  it("writes one call after the other, whoever calls", async () => {
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

  it("names the lines that Paperclip did not take, once it takes some again", async () => {
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

  it("gives a sign of life in a silence, with the phase", async () => {
    let heard: (chunk: string) => void = () => undefined;
    const beat = new Promise<string>((resolve) => {
      heard = resolve;
    });
    const log = new RunLog(async (_, chunk) => heard(chunk), 20);
    log.phase = "running";
    expect(JSON.parse(await beat)).toMatchObject({ event: "heartbeat", phase: "running" });
    await log.close();
  });

  it("tells the session once", async () => {
    const { chunks, log } = recorder();
    for (let n = 0; n < 3; n++) await log.session(line(event("x")), "fake/model");
    await log.close();
    expect(chunks.map((chunk) => JSON.parse(chunk))).toMatchObject([{ event: "session", sessionId: "ses_1" }]);
    expect(parseStdoutLine(chunks[0] ?? "", "t")).toMatchObject([
      { kind: "init", sessionId: "ses_1", model: "fake/model" },
    ]);
  });

  it("tells of an outage once a minute, and of its end", async () => {
    const { chunks, log } = recorder();
    const trouble = new Trouble(log, "it answers again");
    trouble.recovered();
    for (let n = 0; n < 5; n++) trouble.failed("it is away");
    trouble.recovered();
    trouble.recovered();
    trouble.failed("it is away");
    await log.close();
    expect(chunks.map((chunk) => JSON.parse(chunk).event)).toEqual(["waiting", "note", "waiting"]);
  });

  it("keeps a status within a call, whatever it is given", () => {
    const long = statusLine("note", "é".repeat(50_000), { holder: "h".repeat(50_000) });
    expect(Buffer.byteLength(long)).toBeLessThan(CALL_BYTES - 1);
    expect(JSON.parse(long)).toMatchObject({ type: "agent_run", event: "note" });
  });
});
