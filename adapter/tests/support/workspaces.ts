/** A real workspace service, folders and Git repositories, and a pod's real programs, whose files are in a folder. */

import { type ChildProcessByStdio, execFile, execFileSync, spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { lstat, mkdir, readdir, readFile, readlink, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import type { Readable, Writable } from "node:stream";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect } from "vitest";
import { ConfigurationError } from "../../src/errors.ts";
import { OutageLog, RunLog } from "../../src/log.ts";
import { loadHelpers, type PaperclipHelpers } from "../../src/paperclip-helpers.ts";
import { settingsFrom } from "../../src/settings.ts";
import { mint, runName } from "../../src/tokens.ts";
import { type Carried, carriedFolder, withWorkspace } from "../../src/workspace/carried.ts";
import { Store } from "../../src/workspace/store.ts";
import { aRequest, PYTHON, type Request } from "./stack.ts";

const ROOT = join(import.meta.dirname, "..", "..", "..");

/** Those of the package that Paperclip installs. */
export async function realHelpers(): Promise<PaperclipHelpers> {
  return await loadHelpers(import.meta.filename);
}

export interface Service {
  url: string;
  keyFile: string;
  /** The program of a pod's sidecar. */
  sidecar: string;
  pid: number;
}

/** A service for all tests of a file. */
export function workspaceService(...limits: number[]): Service {
  const service = {} as Service;
  beforeAll(async () => {
    Object.assign(service, await startService(temporary(), limits));
  });
  return service;
}

/** A service with its files in this folder, which ends with the test file. */
export async function startService(folder: string, limits: number[] = []): Promise<Service> {
  const program = join(import.meta.dirname, "..", "workspace_service.py");
  const child = spawn(PYTHON, [program, folder, ...limits.map(String)], {
    cwd: ROOT,
    env: { ...process.env, PYTHONPATH: ROOT },
    stdio: ["pipe", "pipe", "inherit"],
  });
  services.push(child);
  const url = await new Promise<string>((resolve, reject) => {
    createInterface({ input: child.stdout }).once("line", resolve);
    child.once("exit", (code) => reject(new Error(`the service exited with ${code}`)));
  });
  return { url, keyFile: join(folder, "key.json"), sidecar: join(folder, "sidecar.pyz"), pid: child.pid ?? 0 };
}

const services: ChildProcessByStdio<Writable, Readable, null>[] = [];
afterAll(() => {
  for (const child of services) child.stdin.end();
});

const folders: string[] = [];
afterAll(() => {
  for (const folder of folders) rmSync(folder, { recursive: true, force: true });
});

export function temporary(): string {
  const folder = mkdtempSync(join(tmpdir(), "workspace-"));
  folders.push(folder);
  return folder;
}

export function git(folder: string, ...args: string[]): string {
  const identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "protocol.file.allow=always"];
  return execFileSync("git", ["-C", folder, ...identity, ...args], { stdio: ["ignore", "pipe", "pipe"] })
    .toString()
    .trim();
}

/** A repository with these files in one commit. */
export function repository(files: { [path: string]: string } = { "README.md": "one\n" }): string {
  const folder = temporary();
  git(folder, "init", "-q", "-b", "main");
  for (const [path, text] of Object.entries(files)) put(folder, path, text);
  git(folder, "add", "-A");
  git(folder, "commit", "-q", "-m", "first");
  return folder;
}

/** What a folder is refused for. */
export async function refusal(promise: Promise<unknown>): Promise<string> {
  const error = await promise.then(
    () => undefined,
    (error: Error) => error,
  );
  expect(error).toBeInstanceOf(ConfigurationError);
  return (error as Error).message;
}

export function put(folder: string, path: string, text: string): void {
  mkdirSync(dirname(join(folder, path)), { recursive: true });
  execFileSync("sh", ["-c", 'cat > "$0"', join(folder, path)], { input: text });
}

/** What is in a folder: mode and content of files, targets of links, and folders; without Git's own. */
export async function contents(folder: string, withGit = false): Promise<{ [path: string]: string }> {
  const found: { [path: string]: string } = {};
  const visit = async (path: string) => {
    for (const name of (await readdir(join(folder, path))).sort()) {
      if (name === ".git" && !withGit) continue;
      const below = join(path, name);
      const place = join(folder, below);
      const about = await lstat(place);
      const bits = (about.mode & 0o777).toString(8);
      if (about.isSymbolicLink()) found[below] = `-> ${await readlink(place)}`;
      else if (about.isDirectory()) {
        found[`${below}/`] = bits;
        await visit(below);
      } else found[below] = `${bits} ${await readFile(place, "latin1")}`;
    }
  };
  await visit("");
  return found;
}

/** Runs a program, and says on standard error what it has taken. */
const MEASURE = `
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(f"{used.ru_utime + used.ru_stime:.1f} s CPU, {used.ru_maxrss // 1024} MiB at most", file=sys.stderr)
sys.exit(code)
`;
let podsUsage = "";

/** Seconds of `work`, and CPU time and memory of each process that takes part. */
export async function usage(service: Service, work: () => Promise<void>): Promise<string> {
  const ofService = () => {
    const [, after = ""] = readFileSync(`/proc/${service.pid}/stat`, "utf8").split(") ");
    const [user, system] = after.split(" ").slice(11, 13).map(Number) as [number, number];
    return (user + system) / 100;
  };
  writeFileSync(`/proc/${service.pid}/clear_refs`, "5");
  const [began, cpu, before] = [performance.now(), process.cpuUsage(), ofService()];
  let rss = 0;
  const timer = setInterval(() => {
    rss = Math.max(rss, process.memoryUsage.rss());
  }, 20);
  podsUsage = "";
  await work();
  clearInterval(timer);
  const { user, system } = process.cpuUsage(cpu);
  const peak = /VmHWM:\s+(\d+)/.exec(readFileSync(`/proc/${service.pid}/status`, "utf8"))?.[1];
  return [
    `${((performance.now() - began) / 1000).toFixed(1)} s`,
    `plugin ${((user + system) / 1e6).toFixed(1)} s CPU, ${Math.round(rss / 2 ** 20)} MiB`,
    `service ${(ofService() - before).toFixed(1)} s CPU, ${Math.round(Number(peak) / 1024)} MiB`,
    ...(podsUsage ? [`pod ${podsUsage}`] : []),
  ].join("; ");
}

/** One run: its folder on Paperclip's side, and the agent's in the pod. */
export class Case {
  readonly runId: string;
  readonly agent: { id: string; companyId: string; name: string; adapterType: string | null };
  readonly pod = temporary();
  readonly lines: string[] = [];
  readonly #service: Service;
  readonly #folder: string;
  readonly #config: object;
  readonly #helpers: PaperclipHelpers;

  constructor(
    service: Service,
    folder: string,
    helpers: PaperclipHelpers = {},
    config: object = {},
    request: Pick<Request, "runId" | "agent"> = aRequest(),
  ) {
    this.runId = request.runId;
    this.agent = request.agent;
    this.#service = service;
    this.#folder = folder;
    this.#helpers = helpers;
    this.#config = config;
  }

  async carried(): Promise<Carried> {
    const settings = settingsFrom({
      AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL: this.#service.url,
      AGENT_RUNS_TRANSCRIPTS_KEY_FILE: this.#service.keyFile,
    });
    const log = new RunLog(async (_, chunk) => void this.lines.push(chunk));
    const context = { paperclipWorkspace: { cwd: this.#folder } };
    const host = { agent: this.agent, config: { ...this.#config }, context };
    const { limits } = await withWorkspace(host, settings);
    const parts = { settings, helpers: this.#helpers, log, outage: new OutageLog(log, "again"), limits };
    const carried = await carriedFolder(host, parts);
    if (carried === undefined) throw new Error("the folder is not carried");
    return carried;
  }

  /** Sends the folder, and makes it in the pod. */
  async out(): Promise<void> {
    await this.send();
    await this.restore();
  }

  async send(): Promise<void> {
    await (await this.carried()).out?.(this.runId);
  }

  async back(): Promise<void> {
    await (await this.carried()).back(this.runId);
  }

  store(attempt = 0): Store {
    return new Store(this.#service.url, () => this.#token(attempt));
  }

  async #token(attempt: number): Promise<string> {
    const claims = { aud: "agent-runs.workspace", company: this.agent.companyId, attempt };
    return await mint(runName(this.agent.id, this.runId), { transcriptsKeyFile: this.#service.keyFile }, 3600, claims);
  }

  /** Makes in the pod what went out, as its init container does. */
  async restore(): Promise<void> {
    const last = await this.store().last("out");
    if (last === undefined) throw new Error("nothing went out");
    await rm(this.pod, { recursive: true, force: true });
    await mkdir(this.pod);
    await this.#sidecar("restore", 1, { restore: last.number });
  }

  /** Stores what is in the pod's folder, as its sidecar does. Rejects unless all of it is stored. */
  async end(kind: "end" | "checkpoint" = "end", attempt = 1): Promise<void> {
    const lines = await this.#sidecar("keep", attempt, {}, `${kind === "end" ? "end" : "step"} 1 ses_1\n`);
    const { error, warnings } = JSON.parse(lines.trim().split("\n").at(-1) ?? "");
    if (error || warnings.length > 0) throw new Error(JSON.stringify({ error, warnings }));
  }

  /** The pod's own program, which ends when it has nothing more to read. */
  async #sidecar(command: "restore" | "keep", attempt: number, more: object, input = ""): Promise<string> {
    const own = temporary();
    const [config, token] = [join(own, "workspace.json"), await this.#token(attempt)];
    await writeFile(config, JSON.stringify({ url: this.#service.url, token, roots: { workspace: this.pod }, ...more }));
    const argv = ["-I", "-S", this.#service.sidecar, command, config];
    const running = promisify(execFile)(PYTHON, ["-c", MEASURE, PYTHON, ...argv], { cwd: own, maxBuffer: 1024 * 1024 });
    running.child.stdin?.end(input);
    const { stdout, stderr } = await running;
    podsUsage = stderr.trim();
    return stdout;
  }
}
