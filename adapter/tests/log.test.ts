/** A run's log in Paperclip: our status lines, and the agent's calls in their order, with every lost one named. */

import { describe, expect, it } from "vitest";
import { OutageLog, RunLog, statusLine } from "../src/log.ts";
import { logFormatFor, settingsFrom } from "../src/settings.ts";
import type { LogCall } from "../src/transcript.ts";

function call(text: string): LogCall {
  return { attempt: 1, stream: "stdout", text };
}

describe("our own status lines", () => {
  it("are cut to the limit of a call", () => {
    expect(Buffer.byteLength(statusLine("漢".repeat(50_000)))).toBeLessThan(8000 - 1);
  });

  it("are sentences that say whose they are, on one line whatever an error message holds", () => {
    expect(statusLine("run 1 started")).toBe("[agent-runs] run 1 started");
    expect(statusLine("failed: a\n[agent-runs] b\u001b[31m\u202e \u0000c\ud83d")).toBe(
      "[agent-runs] failed: a [agent-runs] b c\ufffd",
    );
  });

  it("are written to stderr where something is wrong", async () => {
    const chunks: string[] = [];
    const log = new RunLog(async (stream, chunk) => void chunks.push(`${stream} ${chunk}`));
    await log.status("run 1 started");
    await log.status("5 lines are missing", "stderr");
    await log.close();
    expect(chunks).toEqual(["stdout [agent-runs] run 1 started\n", "stderr [agent-runs] 5 lines are missing\n"]);
  });
});

describe("the format", () => {
  it("is text only where no parser shows the log, unless a setting decides", () => {
    const format = (environment: NodeJS.ProcessEnv, version: string | undefined, type = "opencode_k8s") =>
      logFormatFor(settingsFrom(environment), type, version);
    expect(format({}, "2026.916.1")).toBe("text");
    expect(format({ AGENT_RUNS_RUN_LOG_FORMAT: "auto" }, "2026.916.1")).toBe("text");
    expect(format({}, "2026.999.0")).toBe("events");
    expect(format({}, undefined)).toBe("events");
    expect(format({ AGENT_RUNS_RUN_LOG_FORMAT: "events" }, "2026.916.1")).toBe("events");
    expect(format({ AGENT_RUNS_RUN_LOG_FORMAT: " text " }, undefined)).toBe("text");
    expect(format({}, "2026.916.1", "opencode_local")).toBe("events");
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
    const calls = Array.from({ length: 50 }, (_, n) => (n % 5 === 0 ? log.status(`${n}`) : log.call(call(`${n}`))));
    await Promise.all(calls);
    await log.close();
    expect(most).toBe(1);
    const order = chunks.map((chunk) => chunk.replace("[agent-runs] ", "").trim());
    expect(order).toEqual(Array.from({ length: 50 }, (_, n) => `${n}`));
    expect(chunks.every((chunk) => chunk.endsWith("\n"))).toBe(true);
    expect(log.calls).toBe(40);
  });

  it("writes nothing after it was closed", async () => {
    const { chunks, log } = recorder();
    await log.close();
    await log.status("late");
    expect(chunks).toEqual([]);
  });

  it("reports the lines that Paperclip refused, once it accepts lines again", async () => {
    let refusing = 0;
    const { chunks, log } = recorder(async () => {
      if (refusing-- > 0) throw new Error("full");
    });
    await log.call(call("a"));
    refusing = 2;
    await log.call(call("b"));
    await log.call(call("c"));
    await log.call(call("d"));
    await log.close();
    expect(chunks.map((chunk) => chunk.trim())).toEqual([
      "a",
      expect.stringContaining("2 lines are missing here"),
      "d",
    ]);
  });

  it("writes a heartbeat with the phase while nothing else is written", async () => {
    let onHeartbeat: (chunk: string) => void = () => undefined;
    const heartbeat = new Promise<string>((resolve) => {
      onHeartbeat = resolve;
    });
    const log = new RunLog(async (_, chunk) => onHeartbeat(chunk), 20);
    log.phase = "running";
    expect(await heartbeat).toBe("[agent-runs] no new output; the run is running\n");
    await log.close();
  });

  it("writes the session once", async () => {
    const { chunks, log } = recorder();
    for (let n = 0; n < 3; n++) await log.session("ses_1", "fake/model");
    await log.close();
    expect(chunks).toEqual(["[agent-runs] session ses_1 of fake/model\n"]);
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
    const [failed, recovered] = ["it does not answer", "it answers again after 0 s"];
    expect(chunks).toEqual([failed, recovered, failed].map((message) => `[agent-runs] ${message}\n`));
  });
});
