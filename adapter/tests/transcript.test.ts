/** The transcript reader, against services that cut, stall, repeat and refuse, and the tokens that it sends. */

import { createHmac, randomBytes } from "node:crypto";
import { mkdtempSync, writeFileSync } from "node:fs";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, describe, expect, it } from "vitest";
import { mint, UnusableTokenKey } from "../src/tokens.ts";
import { follow, type Line, TranscriptIncomplete, type TranscriptSource } from "../src/transcript.ts";
import { Aborted } from "../src/waits.ts";

interface ServiceRequest {
  what: string;
  attempt: number;
  after: number;
  resumed: string | undefined;
  token: string | undefined;
}

type Answer = (requests: ServiceRequest, response: ServerResponse, nth: number) => void | Promise<void>;

let service: Server | undefined;
afterEach(() => {
  service?.closeAllConnections();
  service?.close();
});

async function startService(answer: Answer): Promise<{ base: string; requests: ServiceRequest[] }> {
  const requests: ServiceRequest[] = [];
  service = createServer((request: IncomingMessage, response) => {
    const url = new URL(request.url ?? "", "http://here");
    const one = {
      what: url.pathname.split("/").at(-1) ?? "",
      attempt: Number(url.searchParams.get("attempt")),
      after: Number(url.searchParams.get("after")),
      resumed: request.headers["last-event-id"] as string | undefined,
      token: request.headers.authorization,
    };
    requests.push(one);
    void answer(one, response, requests.length);
  });
  await new Promise<void>((resolve) => service?.listen(0, "127.0.0.1", resolve));
  const address = service.address();
  const port = typeof address === "object" && address !== null ? address.port : 0;
  return { base: `http://127.0.0.1:${port}`, requests };
}

function recordLine(sequence: number, data = `line ${sequence}`, encoding = "utf-8"): string {
  const at = "2026-01-02T12:00:00.000000+00:00";
  return JSON.stringify({ sequence, stream: "stdout", at, terminated: true, encoding, data });
}

function events(from: number, to: number): string {
  return Array.from({ length: to - from + 1 }, (_, n) => `id: ${from + n}\ndata: ${recordLine(from + n)}\n\n`).join("");
}

const END = 'event: end\ndata: {"state":"verified","lines":5,"gaps":[{"after_sequence":3,"frames":2}]}\n\n';

function collectLines(more: { slow?: () => Promise<void> } = {}) {
  const lines: Line[] = [];
  const sealed: unknown[] = [];
  return {
    lines,
    sealed,
    texts: () => lines.map(({ attempt, text }) => `${attempt}:${text}`),
    reader: {
      line: async (line: Line) => {
        await more.slow?.();
        lines.push(line);
      },
      sealed: async (attempt: number, receipt: unknown) => void sealed.push([attempt, receipt]),
    },
  };
}

function source(base: string, changes: Partial<TranscriptSource> = {}): TranscriptSource {
  return { base, runId: "run-1", token: async () => "secret-token", ...changes };
}

/** An outcome that the test resolves or rejects. */
function controlledOutcome() {
  let decide: (attempts: number) => void = () => undefined;
  let fail: (error: Error) => void = () => undefined;
  const decided = new Promise<{ attempts: number }>((resolve, reject) => {
    decide = (attempts) => resolve({ attempts });
    fail = reject;
  });
  return { decided, decide, fail };
}

const range = (attempt: number, from: number, to: number) =>
  Array.from({ length: to - from + 1 }, (_, n) => `${attempt}:line ${from + n}`);

describe("following", () => {
  it("passes each line once, in order, over attempts, and ends with the outcome", async () => {
    const { decided, decide } = controlledOutcome();
    const { base, requests } = await startService((one, response) => {
      if (one.what === "transcript") return void response.end();
      if (one.attempt <= 2) return void response.end(events(one.after + 1, 5) + END);
      response.write(": alive\n\n"); // a third attempt never comes
      decide(2);
    });
    const { texts, sealed, reader } = collectLines();
    await follow(source(base), reader, decided);
    expect(texts()).toEqual([...range(1, 1, 5), ...range(2, 1, 5)]);
    expect(sealed).toMatchObject([
      [1, { state: "verified", gaps: [{ afterSequence: 3, frames: 2 }] }],
      [2, {}],
    ]);
    expect(requests[0]).toMatchObject({ what: "events", attempt: 1, after: 0, token: "Bearer secret-token" });
  });

  it("resumes after the last line when a response is cut, also inside a line", async () => {
    const { decided, decide } = controlledOutcome();
    const { base, requests } = await startService((one, response) => {
      if (one.what === "transcript") return void response.end();
      if (one.attempt === 2) return decide(1);
      const whole = events(one.after + 1, 5) + END;
      if (one.after >= 4) return void response.end(whole);
      const cut = events(one.after + 1, one.after + 2);
      response.write(cut.slice(0, -20), () => response.destroy());
    });
    const { texts, reader } = collectLines();
    await follow(source(base), reader, decided);
    expect(texts()).toEqual(range(1, 1, 5));
    expect(requests.filter(({ attempt }) => attempt === 1).map(({ after }) => after)).toEqual([0, 1, 2, 3, 4]);
    expect(requests[1]?.resumed).toBe("1");
  });

  it("leaves out lines that a service repeats", async () => {
    const { decided, decide } = controlledOutcome();
    const { base } = await startService((one, response) => {
      if (one.what === "transcript") return void response.end(`${recordLine(1)}\n${recordLine(5)}\n`);
      if (one.attempt === 2) return decide(1);
      response.end(events(1, 3) + events(2, 5) + END);
    });
    const { texts, reader } = collectLines();
    await follow(source(base), reader, decided);
    expect(texts()).toEqual(range(1, 1, 5));
  });

  it("takes 204 for the end of an attempt", async () => {
    const { decided, decide } = controlledOutcome();
    const { base } = await startService((one, response) => {
      if (one.what === "transcript") return void response.end();
      if (one.attempt === 2) return decide(1);
      if (one.resumed) return void response.writeHead(204).end();
      response.end(events(1, 5)); // without an `end` event
    });
    const { texts, sealed, reader } = collectLines();
    await follow(source(base), reader, decided);
    expect(texts()).toEqual(range(1, 1, 5));
    expect(sealed).toEqual([[1, null]]);
  });

  it("reads the stored rest when the outcome comes and no `end` event", async () => {
    const { decided, decide } = controlledOutcome();
    const { base, requests } = await startService((one, response) => {
      if (one.what === "events") {
        response.write(events(1, 3));
        setTimeout(() => decide(3), 30);
        return;
      }
      if (one.attempt === 2) return void response.writeHead(404).end("{}");
      const lines = one.attempt === 1 ? [4, 5] : [1];
      response.end(lines.map((sequence) => `${recordLine(sequence)}\n`).join(""));
    });
    const { texts, reader } = collectLines();
    await follow(source(base), reader, decided);
    expect(texts()).toEqual([...range(1, 1, 5), ...range(3, 1, 1)]);
    expect(requests.filter(({ what }) => what === "transcript").map(({ attempt, after }) => [attempt, after])).toEqual([
      [1, 3],
      [2, 0],
      [3, 0],
    ]);
  });

  it("resumes a stored transcript that is cut", async () => {
    const { base, requests } = await startService((one, response) => {
      if (one.what === "events") return void response.write(": alive\n\n");
      if (one.after === 0)
        return void response.write(`${recordLine(1)}\n${recordLine(2).slice(0, 30)}`, () => response.destroy());
      response.end(`${recordLine(2)}\n${recordLine(3)}`.concat("\n"));
    });
    const { texts, reader } = collectLines();
    await follow(source(base), reader, Promise.resolve({ attempts: 1 }));
    expect(texts()).toEqual(range(1, 1, 3));
    expect(requests.at(-1)?.after).toBe(1);
  });

  it("reconnects when a connection is dead", async () => {
    const { decided, decide } = controlledOutcome();
    const { base } = await startService((one, response, nth) => {
      if (one.what === "transcript") return void response.end();
      if (one.attempt === 2) return decide(1);
      if (nth === 1) return void response.write(events(1, 2)); // and then nothing, for ever
      response.end(events(one.after + 1, 5) + END);
    });
    const { texts, reader } = collectLines();
    await follow(source(base, { silence: 200 }), reader, decided);
    expect(texts()).toEqual(range(1, 1, 5));
  });

  it("lets a slow reader slow the service, instead of buffering lines", async () => {
    const { decided, decide } = controlledOutcome();
    let sent = 0;
    let release: () => void = () => undefined;
    const first = new Promise<void>((resolve) => {
      release = resolve;
    });
    const big = "x".repeat(64 * 1024);
    const { base } = await startService(async (one, response) => {
      if (one.what === "transcript") return void response.end();
      if (one.attempt === 2) return decide(1);
      for (let n = 1; n <= 1000; n++) {
        if (!response.write(`id: ${n}\ndata: ${recordLine(n, big)}\n\n`)) {
          await new Promise((resolve) => response.once("drain", resolve));
        }
        sent = n;
      }
      response.end(END);
    });
    let waited = false;
    const { lines, reader } = collectLines({
      slow: async () => {
        if (waited) return;
        waited = true;
        setTimeout(release, 300);
        await first;
        expect(sent).toBeLessThan(200); // of 1000 that make 64 MB
      },
    });
    await follow(source(base), reader, decided);
    expect(lines.length).toBe(1000);
  });

  it("decodes bytes that are not UTF-8", async () => {
    const { base } = await startService((one, response) => {
      if (one.what === "events") return void response.write(": alive\n\n");
      const bytes = Buffer.from([0x61, 0xff, 0x62]).toString("base64");
      response.end(`${recordLine(1, bytes, "base64")}\n`);
    });
    const { lines, reader } = collectLines();
    await follow(source(base), reader, Promise.resolve({ attempts: 1 }));
    expect(lines[0]?.text).toBe("a\ufffdb");
  });

  it("rejects when the run has no outcome, and when it is aborted", async () => {
    const { decided, fail } = controlledOutcome();
    const { base } = await startService((_, response) => {
      response.write(": alive\n\n");
      fail(new Error("terminated"));
    });
    const { reader } = collectLines();
    await expect(follow(source(base), reader, decided)).rejects.toThrow("terminated");
    const stop = new AbortController();
    const waiting = follow(source(base), reader, new Promise(() => undefined), stop.signal);
    stop.abort();
    await expect(waiting).rejects.toBeInstanceOf(Aborted);
  });

  it("does not reconnect when its reader throws", async () => {
    const { base, requests } = await startService((_, response) => void response.end(events(1, 5)));
    const reader = {
      line: async () => {
        throw new Error("mine");
      },
    };
    await expect(follow(source(base), reader, new Promise(() => undefined))).rejects.toThrow("mine");
    expect(requests.length).toBe(1);
  });
});

describe("an outage of the service", () => {
  it("is retried and reported, and no line is missing", async () => {
    const { decided, decide } = controlledOutcome();
    const messages: string[] = [];
    let recoveries = 0;
    const { base } = await startService((one, response, nth) => {
      if (nth <= 2) return void response.writeHead(503).end();
      if (nth === 3) return void response.destroy();
      if (one.what === "transcript") return void response.end();
      if (one.attempt === 2) return decide(1);
      response.end(events(1, 5) + END);
    });
    const outage = { failed: (message: string) => void messages.push(message), recovered: () => void recoveries++ };
    const { texts, reader } = collectLines();
    await follow(source(base, { outage }), reader, decided);
    expect(texts()).toEqual(range(1, 1, 5));
    expect(messages.length).toBe(3);
    expect(messages[0]).toContain("503");
    expect(messages.join()).not.toContain("secret-token");
    expect(recoveries).toBeGreaterThan(0);
  });

  it("is retried after the end of the run until the timeout, and the gap is named", async () => {
    const { base } = await startService((_, response) => void response.destroy());
    const { reader } = collectLines();
    const reading = follow(source(base, { timeout: 300 }), reader, Promise.resolve({ attempts: 1 }));
    const error = await reading.catch((caught: unknown) => caught);
    expect(error).toBeInstanceOf(TranscriptIncomplete);
    expect(error).toMatchObject({ attempt: 1, after: 0 });
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
    const { reader } = collectLines();
    const reading = follow(source(base, { outage }), reader, new Promise(() => undefined), stop.signal);
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
    expect(error).toBeInstanceOf(UnusableTokenKey);
    expect(String(error)).toContain("AGENT_RUNS_TRANSCRIPTS_KEY_FILE");
    expect(String(error)).not.toContain("c2hvcnQ");
  });

  it("is not signed without the file", async () => {
    const missing = { transcriptsKeyFile: join(folder, "missing.json") };
    await expect(mint("run-1", missing)).rejects.toThrow("ENOENT");
  });
});
