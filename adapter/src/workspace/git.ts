/**
 * Git's part of a carried folder: each repository goes out with a shallow `.git` of its HEAD, without logins, and the
 * agent's commits are taken into the local repository. No file is checked out or compared here, so no filter runs, and the
 * size of the working tree does not matter.
 *
 * No Git command runs in a `.git` that an agent had: its configuration can name programs. Its objects and references are
 * read from a repository of our own, and nothing else is taken.
 */

import { copyFile, mkdir, mkdtemp, realpath, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { ConfigurationError } from "../errors.ts";
import type { PaperclipHelpers } from "../paperclip-helpers.ts";
import { absent, type Entry, FIELD, type File, isGits, same, writeContent } from "./tree.ts";

const OPTIONS = { timeout: 120_000, maxBuffer: 1024 * 1024 };
const REFERENCES = /^(?:HEAD|packed-refs|shallow|refs\/.+)$/;
const OBJECTS = /^objects\/(?:[0-9a-f]{2}\/[0-9a-f]{38}|pack\/pack-[0-9a-f]{40}\.(?:pack|idx))$/;
const NEEDED = ["runLocalGit", "resetLocalGitIndexToHead", "sanitizeGitRemoteUrl"] as const;
/** Without these, another state of the same files: those that count here, and those of the repository itself. */
const STATE = ["core.autocrlf", "core.eol", "core.fileMode"];
const AUTHOR = ["user.name", "user.email"];
/** The author of merges, as in Paperclip's own. */
const IDENTITY = ["-c", "user.name=Paperclip", "-c", "user.email=noreply@paperclip.ing"];
/** Objects have been packed well enough for a way of this length. */
const UPLOAD = "git -c pack.window=0 -c core.compression=1 upload-pack";
const NO_COMMIT = "0".repeat(40);

const FETCH = ["--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--no-recurse-submodules"];

type Git = Required<Pick<PaperclipHelpers, (typeof NEEDED)[number]>>;
/** The contents of the blocks of these files, in their order. */
export type Blocks = (files: readonly File[]) => AsyncGenerator<Buffer, void>;

export function gitOf(helpers: PaperclipHelpers): Git {
  const missing = NEEDED.filter((name) => helpers[name] === undefined);
  if (missing.length === 0) return helpers as Git;
  const remedy = `is a Git repository, for which this Paperclip has no ${missing.join(", ")}: use Paperclip 2026.916 or later`;
  throw new ConfigurationError({ field: FIELD, remedy });
}

/** Calls `work` with a folder that is there until then. */
export async function withTemporary<T>(work: (folder: string) => Promise<T>): Promise<T> {
  const folder = await mkdtemp(join(tmpdir(), "agent-runs-"));
  try {
    return await work(folder);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

async function run(git: Git, folder: string, ...args: string[]): Promise<string> {
  return (await git.runLocalGit(folder, args, OPTIONS)).stdout.trim();
}

/** The commit of HEAD; undefined for none. */
async function headOf(git: Git, folder: string): Promise<string | undefined> {
  return (await run(git, folder, "rev-parse", "--quiet", "--verify", "HEAD").catch(() => "")) || undefined;
}

async function branchOf(git: Git, folder: string): Promise<string | null> {
  return (await run(git, folder, "symbolic-ref", "--quiet", "--short", "HEAD").catch(() => "")) || null;
}

async function gitPath(git: Git, folder: string, name: string): Promise<string> {
  return await run(git, folder, "rev-parse", "--path-format=absolute", "--git-path", name);
}

/** Makes in `temporary` the `.git` that goes out for the repository at `folder`, whose path in the tree is `path`. */
export async function gitFolder(git: Git, folder: string, path: string, temporary: string): Promise<string> {
  const own = await run(git, folder, "rev-parse", "--show-prefix").catch(() => "none"); // of a parent, it has one
  const sparse = await run(git, folder, "config", "--bool", "core.sparseCheckout").catch(() => "");
  const fault = own !== "" ? "is no repository that Git can read" : sparse === "true" && "is a sparse checkout";
  if (fault) {
    const remedy = `has ${JSON.stringify(`${path}/.git`)}, which ${fault}: correct that, or leave it out with config.workspaceIgnore`;
    throw new ConfigurationError({ field: FIELD, remedy });
  }
  const target = await mkdtemp(join(temporary, "git-"));
  const branch = await branchOf(git, folder);
  await run(git, target, "init", "--quiet", "--template=", `--initial-branch=${branch ?? "main"}`);
  for (const [names, scope] of [
    [STATE, "--includes"],
    [AUTHOR, "--local"],
  ] as const)
    for (const name of names) {
      const value = await run(git, folder, "config", scope, "--get", name).catch(() => "");
      if (value !== "") await run(git, target, "config", name, value);
    }
  // allow-remote: the agent may publish its branch, where there is one
  await addOrigin(git, target, await run(git, folder, "remote", "get-url", "origin").catch(() => ""));
  for (const name of ["hooks", "info"]) await mkdir(join(target, ".git", name));
  const exclude = await gitPath(git, folder, "info/exclude");
  await copyFile(exclude, join(target, ".git", "info", "exclude")).catch(absent);
  if ((await headOf(git, folder)) === undefined) return join(target, ".git");
  const fetch = ["fetch", ...FETCH, "--depth=1", `--upload-pack=${UPLOAD}`, folder, "+HEAD:refs/agent-runs"];
  await run(git, target, ...fetch);
  if (branch === null) await run(git, target, "update-ref", "--no-deref", "HEAD", "refs/agent-runs");
  else await run(git, target, "update-ref", "HEAD", "refs/agent-runs");
  await run(git, target, "update-ref", "-d", "refs/agent-runs");
  await run(git, target, "read-tree", "HEAD");
  return join(target, ".git");
}

interface Return {
  git: Git;
  /** The trees that went out and came back. */
  base: ReadonlyMap<string, Entry>;
  theirs: ReadonlyMap<string, Entry>;
  /** Blocks of each. */
  baseBlocks: Blocks;
  theirBlocks: Blocks;
}

/** The paths of the folders that are repositories in a tree. */
export function repositories(tree: ReadonlyMap<string, Entry>): string[] {
  const folders = [...tree.values()].filter(({ kind, path }) => kind === "dir" && path.endsWith("/.git"));
  return folders.map(({ path }) => dirname(path)).filter((path) => !isGits(path));
}

/**
 * Takes the agent's commits of the repository `path` into the one at `folder`, whose files stay as they are.
 *
 * Rejects with the reason if they cannot be taken. Doing it again changes nothing.
 */
export async function takeCommits(
  { git, base, theirs, baseBlocks, theirBlocks }: Return,
  path: string,
  folder: string,
) {
  if ((await realpath(folder).catch(absent)) !== folder) throw new Error("the folder is not there");
  await withTemporary(async (temporary) => {
    const unpacked = async (name: string, tree: typeof base, blocks: Blocks) => {
      const bare = join(temporary, name);
      await mkdir(bare);
      await run(git, bare, "init", "--quiet", "--bare");
      await unpack(filesOf(tree, path, REFERENCES), bare, blocks);
      return bare;
    };
    const bare = await unpacked("theirs", theirs, theirBlocks);
    const head = await headOf(git, bare);
    const before = await headOf(git, await unpacked("base", base, baseBlocks));
    if (head === undefined || head === before) return;
    const known = base.has(`${path}/.git`);
    const prefix = await run(git, folder, "rev-parse", "--show-prefix").catch(() => "none");
    if (prefix !== "" && known) throw new Error("the local repository is gone");
    if (prefix !== "") {
      await unpack(filesOf(theirs, path, /^config$/), join(temporary, "names"), theirBlocks);
      await create(git, folder, (await branchOf(git, bare)) ?? "main", join(temporary, "names", "config"));
    }
    const local = await headOf(git, folder);
    const objects = filesOf(theirs, path, OBJECTS).filter(([, file]) => !same(file, base.get(file.path)));
    await unpack(objects, bare, theirBlocks);
    // what went out is in the local repository
    await writeFile(join(bare, "objects", "info", "alternates"), `${await gitPath(git, folder, "objects")}\n`);
    await writeFile(join(bare, "HEAD"), `${head}\n`);
    const shallow = local === undefined ? ["--update-shallow"] : [];
    await run(git, folder, "-c", "fetch.fsckObjects=true", "fetch", ...FETCH, ...shallow, bare, "HEAD");
    // Git takes a commit without its parents from a shallow repository, and the helper would move HEAD to it
    await run(git, folder, "rev-list", "--quiet", head, ...(local ? ["--not", local] : []));
    if (local === undefined) await run(git, folder, "update-ref", "HEAD", head, NO_COMMIT);
    else if (known) await integrate(git, folder, local, head);
    else await run(git, folder, "merge-base", "--is-ancestor", head, "HEAD");
    await moveIndex(git, folder, before);
  });
}

/** Moves HEAD to the agent's commit, a merge with it, or, where the agent has rewritten history, a commit with its tree. */
async function integrate(git: Git, folder: string, local: string, head: string): Promise<void> {
  const base = await run(git, folder, "merge-base", local, head).catch((error: { code?: unknown }) => {
    if (error.code !== 1) throw error;
    return undefined;
  });
  if (base === head) return;
  const commit = async (tree: string, parents: string[], message: string) => {
    const from = parents.flatMap((parent) => ["-p", parent]);
    return await run(git, folder, ...IDENTITY, "commit-tree", tree, ...from, "-m", message);
  };
  let next = head;
  if (base === undefined) {
    const trailer = `(agent-runs graft ${head}: the agent has rewritten the history before it)`;
    const again = await run(git, folder, "log", "-1", "--format=%H", "--fixed-strings", `--grep=${trailer}`, "HEAD");
    if (again !== "") return;
    const message = await run(git, folder, "log", "-1", "--format=%B", head);
    next = await commit(`${head}^{tree}`, [local], `${message}\n\n${trailer}`);
  } else if (base !== local) {
    const tree = await run(
      git,
      folder,
      "merge-tree",
      "--write-tree",
      "--no-messages",
      "--name-only",
      local,
      head,
    ).catch(({ code, stdout, stderr }: { code?: unknown; stdout: string; stderr: string }) => {
      throw new Error(code === 1 ? `both changed ${stdout.trim().split("\n").slice(1, 6).join(", ")}` : stderr);
    });
    next = await commit(tree, [local, head], `Merge the agent's commit ${head.slice(0, 12)}`);
  }
  await run(git, folder, "update-ref", "-m", "agent-runs: the agent's commits", "HEAD", next, local);
}

/** The index of a HEAD that has moved; what was staged stays so where the agent's commits do not change it. */
async function moveIndex(git: Git, folder: string, before: string | undefined): Promise<void> {
  try {
    if (before === undefined) throw new Error();
    await run(git, folder, "read-tree", "-m", "-i", before, "HEAD");
  } catch {
    await git.resetLocalGitIndexToHead({ localDir: folder });
  }
}

/** A repository that the agent has made: of its configuration only the address that it came from is taken. */
async function create(git: Git, folder: string, branch: string, config: string): Promise<void> {
  await run(git, folder, "init", "--quiet", `--initial-branch=${branch}`);
  await addOrigin(
    git,
    folder,
    await run(git, folder, "config", "--file", config, "--get", "remote.origin.url").catch(() => ""),
  );
}

async function addOrigin(git: Git, folder: string, url: string): Promise<void> {
  const origin = git.sanitizeGitRemoteUrl(url);
  // allow-remote: where the repository came from, without a login; an agent or a later run may need it
  if (origin !== null) await run(git, folder, "remote", "add", "origin", origin);
}

/** The files of the `.git` in `path` whose names there match, with these names. */
function filesOf(tree: ReadonlyMap<string, Entry>, path: string, names: RegExp): [string, File][] {
  const within = `${path}/.git/`;
  return [...tree.values()].flatMap((entry) => {
    const name = entry.path.startsWith(within) ? entry.path.slice(within.length) : "";
    return entry.kind === "file" && names.test(name) ? [[name, entry] as [string, File]] : [];
  });
}

async function unpack(files: readonly [string, File][], folder: string, blocks: Blocks): Promise<void> {
  const content = blocks(files.map(([, file]) => file));
  for (const [name, file] of files) {
    await mkdir(dirname(join(folder, name)), { recursive: true });
    await writeContent(join(folder, name), file, content);
  }
}
