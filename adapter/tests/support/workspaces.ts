/** A real workspace service, folders and Git repositories, and a stand-in for the pod, whose files are in a folder. */

import { type ChildProcessByStdio, execFileSync, spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { chmod, lstat, mkdir, readdir, readFile, readlink, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import type { Readable, Writable } from "node:stream";
import { deflateSync } from "node:zlib";
import { afterAll, beforeAll } from "vitest";
import { OutageLog, RunLog } from "../../src/log.ts";
import { loadHelpers, type PaperclipHelpers } from "../../src/paperclip-helpers.ts";
import { settingsFrom } from "../../src/settings.ts";
import { mint, runName } from "../../src/tokens.ts";
import { type Carried, carriedFolder } from "../../src/workspace/carried.ts";
import { Store } from "../../src/workspace/store.ts";
import { contentOf, type Entry, scan } from "../../src/workspace/tree.ts";
import { aRequest, PYTHON, type Request } from "./stack.ts";

const ROOT = join(import.meta.dirname, "..", "..", "..");

/** Those of the package that Paperclip installs. */
export async function realHelpers(): Promise<PaperclipHelpers> {
  return await loadHelpers(import.meta.filename);
}

export interface Service {
  url: string;
  keyFile: string;
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
  return { url, keyFile: join(folder, "key.json") };
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
      const { mode } = await lstat(place);
      const bits = (mode & 0o777).toString(8);
      if ((await lstat(place)).isSymbolicLink()) found[below] = `-> ${await readlink(place)}`;
      else if ((await lstat(place)).isDirectory()) {
        found[`${below}/`] = bits;
        await visit(below);
      } else found[below] = `${bits} ${await readFile(place, "latin1")}`;
    }
  };
  await visit("");
  return found;
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
    const parts = { settings, helpers: this.#helpers, log, outage: new OutageLog(log, "again") };
    const carried = await carriedFolder(host, parts);
    if (carried === undefined) throw new Error("the folder is not carried");
    return carried;
  }

  /** Sends the folder, and makes it in the pod. */
  async out(): Promise<void> {
    await (await this.carried()).out?.(this.runId);
    await this.restore();
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

  async restore(): Promise<void> {
    const last = await this.store().last("out");
    if (last === undefined) throw new Error("nothing went out");
    await rm(this.pod, { recursive: true, force: true });
    const entries = [...last.tree.values()];
    for (const entry of entries) {
      const place = join(this.pod, entry.path.slice("workspace".length));
      if (entry.kind === "dir") await mkdir(place, { mode: 0o700 });
      else if (entry.kind === "link") await symlink(entry.target, place);
      else {
        const blocks: Buffer[] = [];
        for await (const block of this.store().blocks(last.number, entry.blocks)) blocks.push(block);
        await writeFile(place, Buffer.concat(blocks));
        await chmod(place, entry.mode);
      }
    }
    for (const entry of entries.reverse())
      if (entry.kind === "dir") await chmod(join(this.pod, entry.path.slice("workspace".length)), entry.mode);
  }

  /** Stores what is in the pod's folder, as its sidecar does. */
  async end(kind = "end", attempt = 1): Promise<void> {
    const inPlace = async (folder: string) => join(folder, ".git");
    const { entries, sources } = await scan(this.pod, () => false, { bytes: null, entries: null }, inPlace);
    await this.record(entries, async (name) => contentOf(sources.get(name) as never, name), kind, attempt);
  }

  async record(entries: readonly Entry[], content: (name: string) => Promise<Buffer>, kind: string, attempt = 1) {
    for (const name of entries.flatMap((entry) => (entry.kind === "file" ? entry.blocks : []))) {
      const block = await content(name);
      const size = Buffer.alloc(4);
      size.writeUInt32BE(block.length);
      await this.#post("blocks", Buffer.concat([size, block]), {}, attempt);
    }
    const tree = deflateSync(JSON.stringify({ version: 1, entries }));
    await this.#post("tree", tree, { "Workspace-Kind": kind }, attempt);
  }

  async #post(path: string, body: Buffer, headers: Record<string, string>, attempt: number): Promise<void> {
    const authorization = `Bearer ${await this.#token(attempt)}`;
    const url = `${this.#service.url}/workspace/${path}`;
    const response = await fetch(url, { method: "POST", body, headers: { ...headers, authorization } });
    if (!response.ok) throw new Error(await response.text());
  }
}
