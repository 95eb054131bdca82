/**
 * Real parts for tests: a Temporal dev server, and a worker of the real workflow with stand-in steps and a real transcript
 * service (`tests/workflows/fake_worker_process.py`).
 *
 * `TEMPORAL_CLI` names the dev server's program; without it tests that need it fail. `PYTHON` names the interpreter of
 * the project's environment, by default that of `.venv` in the repository's root.
 */

import { type ChildProcess, spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { mkdtempSync, writeFileSync } from "node:fs";
import { rm } from "node:fs/promises";
import { type AddressInfo, createServer, type Server } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { afterAll, beforeAll } from "vitest";
import type { Wake } from "../../src/attach.ts";
import type { AdapterExecutionContext } from "../../src/paperclip.ts";
import { type Prepared, prepare } from "../../src/request.ts";
import { settingsFrom } from "../../src/settings.ts";
import { disconnect, type Temporal, temporalFor } from "../../src/temporal.ts";
import { KEY, sealer } from "./sealed.ts";

const ROOT = join(import.meta.dirname, "..", "..", "..");
export const PYTHON = process.env.PYTHON || join(ROOT, ".venv", "bin", "python");
const KEYWORDS = ["AgentId", "CompanyId", "PaperclipRunId", "TaskKey", "Model", "RunPhase", "FailureKind"];

export interface DevServer {
  address: string;
  kill(): Promise<void>;
  /** Starts it again at the same address, with its database. */
  start(): Promise<void>;
  stop(): Promise<void>;
}

/** A dev server whose state outlives a kill. */
export async function devServer(): Promise<DevServer> {
  const program = process.env.TEMPORAL_CLI;
  if (!program) throw new Error("TEMPORAL_CLI is not set: give it the Temporal CLI's program (.venv/bin/temporal)");
  const port = await freePort();
  const folder = mkdtempSync(join(tmpdir(), "adapter-temporal-"));
  const options = ["--ip", "127.0.0.1", "--port", String(port), "--http-port", String(await freePort())];
  const attributes = KEYWORDS.flatMap((name) => ["--search-attribute", `${name}=Keyword`]);
  const lists = ["JoinedRunIds=KeywordList", "EndedAt=Datetime", "OutcomeKeptUntil=Datetime"].flatMap((each) => [
    "--search-attribute",
    each,
  ]);
  const quiet = ["--headless", "--log-level", "error", "--db-filename", join(folder, "temporal.db")];
  let child: ChildProcess | undefined;
  const server: DevServer = {
    address: `127.0.0.1:${port}`,
    async start() {
      child = spawn(program, ["server", "start-dev", ...options, ...quiet, ...attributes, ...lists], {
        stdio: "ignore",
      });
      await waitUntilServing(server.address);
    },
    async kill() {
      await stopProcess(child, "SIGKILL");
    },
    async stop() {
      await stopProcess(child, "SIGTERM");
      await rm(folder, { recursive: true, force: true });
    },
  };
  await server.start();
  return server;
}

export interface Standin {
  queue: string;
  /** Base URL of the transcript service. */
  transcripts: string;
  keyFile: string;
  sealingKeyFile: string;
  kill(): Promise<void>;
  stop(): Promise<void>;
}

/** A worker of the real workflow with stand-in steps. */
export async function standin(address: string, queue = `queue-${randomUUID()}`): Promise<Standin> {
  const folder = mkdtempSync(join(tmpdir(), "adapter-standin-"));
  const sealingKeyFile = join(folder, "sealing-key.json");
  writeFileSync(sealingKeyFile, JSON.stringify(KEY));
  const child = spawn(PYTHON, ["-m", "tests.workflows.fake_worker_process", address, queue, folder], {
    cwd: ROOT,
    stdio: ["pipe", "pipe", "inherit"],
  });
  const firstLine = await new Promise<string>((resolve, reject) => {
    createInterface({ input: child.stdout }).once("line", resolve);
    child.once("error", reject);
    child.once("exit", (code) => reject(new Error(`the stand-in worker exited with ${code}`)));
  });
  return {
    queue,
    transcripts: JSON.parse(firstLine).transcripts,
    keyFile: join(folder, "transcripts-key.json"),
    sealingKeyFile,
    kill: () => stopProcess(child, "SIGKILL"),
    async stop() {
      child.stdin.end();
      await stopProcess(child, "SIGTERM", 5000);
      await rm(folder, { recursive: true, force: true });
    },
  };
}

export interface Services {
  server: DevServer;
  worker: Standin;
}

/** A server and a worker for all tests of a file; they are there when its first test begins. */
export function services(): Services {
  const started = {} as Services;
  beforeAll(async () => {
    started.server = await devServer();
    started.worker = await standin(started.server.address);
  });
  afterAll(async () => {
    await started.worker?.stop();
    await disconnect();
    await started.server?.stop();
  });
  return started;
}

/** The settings for these services, and else the defaults. */
export function settingsOf(server: Pick<DevServer, "address">, worker: Partial<Standin>) {
  return settingsFrom({
    TEMPORAL_ADDRESS: server.address,
    AGENT_RUNS_TASK_QUEUE: worker.queue,
    AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL: worker.transcripts,
    AGENT_RUNS_TRANSCRIPTS_KEY_FILE: worker.keyFile,
  });
}

export function temporalOf(server: DevServer, queue: string): Temporal {
  return temporalFor(settingsOf(server, { queue }));
}

/** The data of an execution context. */
export type Request = Pick<AdapterExecutionContext, "runId" | "agent" | "runtime" | "config" | "context">;

/** A valid request with ids of its own. */
export function aRequest(changes: Partial<Request> & { behaviour?: string } = {}): Request {
  const { behaviour = "lines:3", ...rest } = changes;
  return {
    runId: randomUUID(),
    agent: { id: randomUUID(), companyId: "acme", name: "Ada", adapterType: "opencode_k8s" },
    runtime: { sessionId: null, sessionParams: null, sessionDisplayId: null, taskKey: null },
    config: { model: `fake/${behaviour}`, graceSec: 1 },
    context: { taskId: "task-1" },
    ...rest,
  };
}

/** The request, sealed for the workers of these tests. */
export async function preparedOf(request: Request): Promise<Prepared> {
  const context = { ...request, authToken: "token", onLog: async () => undefined };
  const renderPaperclipWakePrompt = (_: unknown, { resumedSession }: object & { resumedSession?: unknown }) =>
    resumedSession ? "resumed" : "fresh";
  return await prepare(context, settingsFrom({}), await sealer(), { renderPaperclipWakePrompt }, {});
}

/** The wake of such a request. */
export async function wakeOf(request: Request): Promise<Wake> {
  return (await preparedOf(request)).wake;
}

export async function until(condition: () => boolean | Promise<boolean>, timeout = 120_000): Promise<void> {
  const end = Date.now() + timeout;
  while (!(await condition())) {
    if (Date.now() > end) throw new Error(`not true within ${timeout} ms: ${condition}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** The free port of 127.0.0.1 at which the server now listens. */
export async function listening(server: Server): Promise<number> {
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return (server.address() as AddressInfo).port;
}

export async function freePort(): Promise<number> {
  const probe = createServer();
  const port = await listening(probe);
  await new Promise((resolve) => probe.close(resolve));
  return port;
}

async function waitUntilServing(address: string): Promise<void> {
  const temporal = temporalFor(settingsOf({ address }, {}));
  await until(async () => {
    try {
      await temporal.withDeadline(Date.now() + 1000, () =>
        temporal.workflowService.describeNamespace({ namespace: "default" }),
      );
      return true;
    } catch {
      return false;
    }
  });
}

async function stopProcess(child: ChildProcess | undefined, signal: NodeJS.Signals, delay = 0): Promise<void> {
  if (child === undefined || child.exitCode !== null || child.signalCode !== null) return;
  const exited = new Promise<void>((resolve) => child.once("exit", () => resolve()));
  const timers = [setTimeout(() => child.kill(signal), delay), setTimeout(() => child.kill("SIGKILL"), delay + 10_000)];
  await exited;
  for (const timer of timers) clearTimeout(timer);
}
