/** The transcript reader, against services that cut, stall, repeat and refuse, and the tokens that it sends. */

import { createHmac, randomBytes } from "node:crypto";
import { mkdtempSync, writeFileSync } from "node:fs";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, describe, expect, it, vi } from "vitest";
import { ConfigurationError } from "../src/errors.ts";
import { mint } from "../src/tokens.ts";
import { follow, type LogCall, type Transcript, TranscriptIncomplete } from "../src/transcript.ts";
import { Aborted } from "../src/waits.ts";
import { listening } from "./support/stack.ts";

interface ServiceRequest {
  path: string;
  attempt: number;
  after: string;
  /** The sequence in `after`. */
  line: number;
  format: string | null;
  stored: boolean;
  token: string | undefined;
}

type Answer = (request: ServiceRequest, response: ServerResponse, nth: number) => void | Promise<void>;

let service: Server | undefined;
afterEach(() => {
  service?.closeAllConnections();
  service?.close();
});

async function startService(answer: Answer): Promise<{ base: string; requests: ServiceRequest[] }> {
  const requests: ServiceRequest[] = [];
  service = createServer((request: IncomingMessage, response) => {
    const { pathname, searchParams: query } = new URL(request.url ?? "", "http://here");
    const after = query.get("after") ?? "";
    const one = {
      path: pathname,
      attempt: Number(query.get("attempt")),
      after,
      line: Number(after.split(".")[0]),
      format: query.get("format"),
      stored: query.get("stored") === "true",
      token: request.headers.authorization,
    };
    requests.push(one);
    void answer(one, response, requests.length);
  });
  return { base: `http://127.0.0.1:${await listening(service)}`, requests };
}

function event(id: string, text: string, more: object = {}): string {
  return `id: ${id}\ndata: ${JSON.stringify({ stream: "stdout", text, ...more })}\n\n`;
}

function events(from: number, to: number): string {
  return Array.from({ length: to - from + 1 }, (_, n) => event(`${from + n}.1`, `line ${from + n}`)).join("");
}

const END = 'event: end\ndata: {"state":"verified","lines":5}\n\n';

/** Collects the calls; `slow` is awaited before each, and `written` gets how many there are. */
function collectCalls(
  slow: () => Promise<void> = async () => undefined,
  written: (calls: number) => unknown = () => undefined,
) {
  const calls: LogCall[] = [];
  const write = async (call: LogCall) => {
    await slow();
    calls.push(call);
    written(calls.length);
  };
  return { calls, write, texts: () => calls.map(({ attempt, text }) => `${attempt}:${text}`) };
}

function transcript(base: string, write: Transcript["write"], changes: Partial<Transcript> = {}): Transcript {
  return { base, run: "run 1", format: "events", token: async () => "secret-token", write, ...changes };
}

/** An outcome that the test resolves to the number of attempts, or rejects. */
function controlledOutcome() {
  let decide: (attempts: number) => void = () => undefined;
  let fail: (error: Error) => void = () => undefined;
  const attempts = new Promise<number>((resolve, reject) => {
    decide = resolve;
    fail = reject;
  });
  return { attempts, decide, fail };
}

const range = (attempt: number, from: number, to: number) =>
  Array.from({ length: to - from + 1 }, (_, n) => `${attempt}:line ${from + n}`);

describe("following", () => {
  it("passes on each call once, in order, over attempts, and ends with the outcome", async () => {
    const { attempts, decide } = controlledOutcome();
    const { base, requests } = await startService((one, response) => {
      if (one.attempt <= 2) return void response.end(events(one.line + 1, 5) + END);
      response.write(": alive\n\n"); // a third attempt never comes
      decide(2);
    });
    const { texts, write } = collectCalls();
    await follow(transcript(`${base}/`, write, { format: "text" }), attempts);
    expect(texts()).toEqual([...range(1, 1, 5), ...range(2, 1, 5)]);
    expect(requests[0]).toMatchObject({
      ...{ path: "/runs/run%201/log", attempt: 1, after: "0.0", format: "text", stored: false },
      token: "Bearer secret-token",
    });
  });

  it("passes on streams, sessions and texts as the service made them", async () => {
    const { base } = await startService((_, response) => {
      response.write(event("1.1", "a\nb", { session: "ses_1" }) + event("1.2", "", { stream: "stderr" }));
      response.end(`id: 7.0\ndata: {}\n\n${event("8.1", "c")}${END}`);
    });
    const { calls, write } = collectCalls();
    await follow(transcript(base, write), Promise.resolve(1));
    expect(calls).toEqual([
      { attempt: 1, stream: "stdout", text: "a\nb", session: "ses_1" },
      { attempt: 1, stream: "stderr", text: "" },
      { attempt: 1, stream: "stdout", text: "c" },
    ]);
  });

  it("names the tool that begins, and when one ends, beside the calls", async () => {
    const { base } = await startService((_, response) => {
      response.write(`id: 1.0\ndata: {"tool":"bash: make"}\n\n${event("2.1", "done", { tool: "" })}`);
      response.end(`${event("3.1", "c")}${END}`);
    });
    const { calls, write } = collectCalls();
    const tools: string[] = [];
    await follow(transcript(base, write, { toolAtWork: (tool) => void tools.push(tool) }), Promise.resolve(1));
    expect(tools).toEqual(["bash: make", ""]);
    expect(calls.map(({ text }) => text)).toEqual(["done", "c"]);
    expect(calls.some((call) => "tool" in call)).toBe(false);
  });

  it("resumes after the last call when a response is cut, also inside an event", async () => {
    const { attempts, decide } = controlledOutcome();
    const { base, requests } = await startService((one, response) => {
      if (one.attempt === 2) return decide(1);
      const whole = events(one.line + 1, 5) + END;
      if (one.line >= 4) return void response.end(whole);
      const cut = events(one.line + 1, one.line + 2);
      response.write(cut.slice(0, -20), () => response.destroy());
    });
    const { texts, write } = collectCalls();
    await follow(transcript(base, write), attempts);
    expect(texts()).toEqual(range(1, 1, 5));
    const ids = requests.filter(({ attempt }) => attempt === 1).map(({ after }) => after);
    expect(ids).toEqual(["0.0", "1.1", "2.1", "3.1", "4.1"]);
  });

  it("resumes between two calls of one line, and after lines that gave none", async () => {
    const answers = [event("1.1", "a") + event("1.2", "b"), `${event("1.3", "c")}id: 9.0\ndata: {}\n\n`, END];
    const { base, requests } = await startService((_, response, nth) => {
      response.write(answers[nth - 1] ?? "", () => nth < 3 && response.destroy());
    });
    const { texts, write } = collectCalls();
    await follow(transcript(base, write), Promise.resolve(1));
    expect(texts()).toEqual(["1:a", "1:b", "1:c"]);
    expect(requests.map(({ after }) => after)).toEqual(["0.0", "1.2", "9.0"]);
  });

  it("leaves out calls that a service repeats", async () => {
    const { attempts, decide } = controlledOutcome();
    const { base } = await startService((one, response) => {
      if (one.attempt === 2) return decide(1);
      response.end(events(1, 3) + events(2, 5) + event("4.0", "late") + event("", "odd") + END);
    });
    const { texts, write } = collectCalls();
    await follow(transcript(base, write), attempts);
    expect(texts()).toEqual(range(1, 1, 5));
  });

  it("reads what is stored when the outcome comes and no `end` event", async () => {
    const { attempts, decide } = controlledOutcome();
    const { base, requests } = await startService((one, response) => {
      if (!one.stored) {
        response.write(events(1, 3));
        return;
      }
      if (one.attempt === 2) return void response.writeHead(404).end('{"detail": "no output is stored yet"}');
      response.end((one.attempt === 1 ? events(4, 5) : events(1, 1)) + END);
    });
    const { texts, write } = collectCalls(undefined, (calls) => calls === 3 && decide(3));
    await follow(transcript(base, write), attempts);
    expect(texts()).toEqual([...range(1, 1, 5), ...range(3, 1, 1)]);
    expect(requests.filter(({ stored }) => stored).map(({ attempt, after }) => [attempt, after])).toEqual([
      [1, "3.1"],
      [2, "0.0"],
      [3, "0.0"],
    ]);
  });

  it("resumes what is stored when the response ends early", async () => {
    const { base, requests } = await startService((one, response) => {
      if (one.line === 0) return void response.end(events(1, 1));
      response.end(events(2, 3) + END);
    });
    const { texts, write } = collectCalls();
    await follow(transcript(base, write), Promise.resolve(1));
    expect(texts()).toEqual(range(1, 1, 3));
    expect(requests.at(-1)).toMatchObject({ stored: true, after: "1.1" });
  });

  it("reconnects when a connection is dead", async () => {
    const { attempts, decide } = controlledOutcome();
    const { base } = await startService((one, response, nth) => {
      if (one.attempt === 2) return decide(1);
      if (nth === 1) return void response.write(events(1, 2)); // and then nothing, for ever
      response.end(events(one.line + 1, 5) + END);
    });
    const { texts, write } = collectCalls();
    await follow(transcript(base, write, { silence: 200 }), attempts);
    expect(texts()).toEqual(range(1, 1, 5));
  });

  it("lets a slow log slow the service, instead of buffering calls", async () => {
    const { attempts, decide } = controlledOutcome();
    let sent = 0;
    let release: () => void = () => undefined;
    const first = new Promise<void>((resolve) => {
      release = resolve;
    });
    const big = "x".repeat(7000);
    const { base } = await startService(async (one, response) => {
      if (one.attempt === 2) return decide(1);
      for (let n = 1; n <= 5000; n++) {
        if (!response.write(event(`${n}.1`, big))) await new Promise((resolve) => response.once("drain", resolve));
        sent = n;
      }
      response.end(END);
    });
    let sentMeanwhile: number | undefined;
    const { calls, write } = collectCalls(async () => {
      if (sentMeanwhile !== undefined) return;
      sentMeanwhile = 0;
      setTimeout(release, 300);
      await first;
      sentMeanwhile = sent;
    });
    await follow(transcript(base, write), attempts);
    expect(calls.length).toBe(5000);
    expect(sentMeanwhile).toBeLessThan(2000); // of 5000 that make 35 MB
  });

  it("leaves no rejection unhandled when there is no token, which would end Paperclip's process", async () => {
    const unhandled: unknown[] = [];
    const note = (reason: unknown) => unhandled.push(reason);
    process.on("unhandledRejection", note);
    const { write } = collectCalls();
    const token = async () => Promise.reject(new ConfigurationError({ field: "A_KEY", remedy: "set it" }));
    const following = follow(transcript("http://127.0.0.1:1", write, { token, timeout: 0 }), Promise.resolve(1));
    await expect(following).rejects.toThrow(TranscriptIncomplete);
    await new Promise((resolve) => setImmediate(resolve));
    process.off("unhandledRejection", note);
    expect(unhandled).toEqual([]);
  });

  it("rejects when the run has no outcome, and when it is aborted", async () => {
    const { attempts, fail } = controlledOutcome();
    const { base } = await startService((_, response) => {
      response.write(": alive\n\n");
      fail(new Error("terminated"));
    });
    const { write } = collectCalls();
    await expect(follow(transcript(base, write), attempts)).rejects.toThrow("terminated");
    const stop = new AbortController();
    const waiting = follow(transcript(base, write), new Promise(() => undefined), stop.signal);
    stop.abort();
    await expect(waiting).rejects.toBeInstanceOf(Aborted);
  });
});

describe("an outage of the service", () => {
  it("is retried and reported, and no call is missing", async () => {
    const { attempts, decide } = controlledOutcome();
    const messages: string[] = [];
    let recoveries = 0;
    const { base } = await startService((one, response, nth) => {
      if (nth <= 2) return void response.writeHead(503).end();
      if (nth === 3) return void response.destroy();
      if (nth === 4) return void response.end(); // a service that stops ends its responses; that is no outage
      if (one.attempt === 2) return decide(1);
      response.end(events(1, 5) + END);
    });
    const outage = { failed: (message: string) => void messages.push(message), recovered: () => void recoveries++ };
    const { texts, write } = collectCalls();
    await follow(transcript(base, write, { outage }), attempts);
    expect(texts()).toEqual(range(1, 1, 5));
    expect(messages.length).toBe(3);
    expect(messages[0]).toContain("503");
    expect(messages.join()).not.toContain("secret-token");
    expect(recoveries).toBeGreaterThan(0);
  });

  it("has the whole timeout after each call, however long the log took for the calls before", async () => {
    const { base } = await startService((one, response) => {
      response.end(one.line < 3 ? events(one.line + 1, one.line + 1) : END);
    });
    const { texts, write } = collectCalls(async () => void vi.setSystemTime(Date.now() + 3_600_000));
    vi.useFakeTimers({ toFake: ["Date"] });
    await follow(transcript(base, write), Promise.resolve(1)).finally(() => vi.useRealTimers());
    expect(texts()).toEqual(range(1, 1, 3));
  });

  it.each([
    ["cuts connections", (response: ServerResponse) => response.destroy(), "attempt 1 could not be read beyond line 0"],
    ["ends its responses", (response: ServerResponse) => response.end(), "the response ended before"],
    ["sends an endless event", (response: ServerResponse) => response.end(`data: ${"x".repeat(200_000)}`), "line 0"],
    ["has no such endpoint", (response: ServerResponse) => response.writeHead(404).end("Not Found"), "404"],
  ])("that %s ends at the timeout after the end of the run, and the gap is named", async (_, answer, gap) => {
    const { base } = await startService((_, response) => void answer(response));
    const { write } = collectCalls();
    const reading = follow(transcript(base, write, { timeout: 300 }), Promise.resolve(1));
    const error = await reading.catch((caught: unknown) => caught);
    expect(error).toBeInstanceOf(TranscriptIncomplete);
    expect(String(error)).toContain(gap);
  });

  it.each([
    [401, "AGENT_RUNS_TRANSCRIPTS_KEY_FILE"],
    [404, "AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL"],
  ])("with status %i names the setting to check", async (status, expected) => {
    const messages: string[] = [];
    const stop = new AbortController();
    const { base } = await startService((_, response) => void response.writeHead(status).end());
    const outage = {
      failed: (message: string) => {
        messages.push(message);
        stop.abort();
      },
      recovered: () => undefined,
    };
    const { write } = collectCalls();
    const reading = follow(transcript(base, write, { outage }), new Promise(() => undefined), stop.signal);
    await expect(reading).rejects.toBeInstanceOf(Aborted);
    expect(messages[0]).toContain(expected);
  });
});

describe("a token", () => {
  const secret = randomBytes(32);
  const folder = mkdtempSync(join(tmpdir(), "adapter-tokens-"));
  const file = (content: string) => {
    const path = join(folder, `${randomBytes(4).toString("hex")}.json`);
    writeFileSync(path, content);
    return path;
  };
  const jwk = { kty: "oct", k: secret.toString("base64url") };

  it.each([
    ["a key", JSON.stringify(jwk)],
    ["a key set, of which the first signs", JSON.stringify({ keys: [jwk, { kty: "oct", k: "AAAA" }] })],
  ])("is an HS256 JWS for one run, from %s", async (_, content) => {
    const token = await mint("run-1", { transcriptsKeyFile: file(content) });
    const [head = "", body = "", signature] = token.split(".");
    expect(signature).toBe(createHmac("sha256", secret).update(`${head}.${body}`).digest("base64url"));
    const claims = JSON.parse(Buffer.from(body, "base64url").toString());
    expect(claims).toMatchObject({ sub: "run-1", aud: "agent-runs.transcripts" });
    expect(claims.exp * 1000).toBeGreaterThan(Date.now());
    expect(JSON.parse(Buffer.from(head, "base64url").toString())).toEqual({ alg: "HS256" });
  });

  it.each([
    ["no JSON", "{"],
    ["no key", "{}"],
    ["another kind", JSON.stringify({ kty: "RSA" })],
    ["a short one", JSON.stringify({ kty: "oct", k: "c2hvcnQ" })],
  ])("is not signed with %s, and the error does not quote the file", async (_, content) => {
    const error = await mint("run-1", { transcriptsKeyFile: file(content) }).catch((caught: unknown) => caught);
    expect(error).toBeInstanceOf(ConfigurationError);
    expect(String(error)).toContain("AGENT_RUNS_TRANSCRIPTS_KEY_FILE");
    expect(String(error)).not.toContain("c2hvcnQ");
  });

  it("is not signed without the file", async () => {
    const missing = { transcriptsKeyFile: join(folder, "missing.json") };
    await expect(mint("run-1", missing)).rejects.toThrow(
      /^AGENT_RUNS_TRANSCRIPTS_KEY_FILE names .*missing.json, which cannot be read \(ENOENT\): start the worker once/,
    );
  });
});
