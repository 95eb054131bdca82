/**
 * Git's part of a carried folder, with Paperclip's own helpers: each repository goes out as a shallow clone of its HEAD,
 * without logins, and the agent's commits are taken into the local repository.
 *
 * No Git command runs in a `.git` that an agent had: its configuration can name programs. Its objects and references are
 * read from a repository of our own, and nothing else is taken. Source of what the helpers do: Paperclip 2026.916.1, read.
 */

import { mkdir, mkdtemp, realpath, rename, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { ConfigurationError } from "../errors.ts";
import type { PaperclipHelpers } from "../paperclip-helpers.ts";
import { absent, type Entry, FIELD, type File, isGits, same, writeContent } from "./tree.ts";

const OPTIONS = { timeout: 120_000, maxBuffer: 1024 * 1024 };
const REFERENCES = /^(?:HEAD|packed-refs|shallow|refs\/.+)$/;
const OBJECTS = /^objects\/(?:[0-9a-f]{2}\/[0-9a-f]{38}|pack\/pack-[0-9a-f]{40}\.(?:pack|idx))$/;
const NEEDED = [
  "runLocalGit",
  "withShallowGitWorkspaceClone",
  "integrateImportedGitHead",
  "resetLocalGitIndexToHead",
  "sanitizeGitRemoteUrl",
] as const;
const NO_COMMIT = "0".repeat(40);

type Git = Required<Pick<PaperclipHelpers, (typeof NEEDED)[number]>>;
export type Blocks = (names: readonly string[]) => AsyncGenerator<Buffer, void>;

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
  const [headCommit, branchName] = [await headOf(git, folder), await branchOf(git, folder)];
  if (headCommit === undefined) {
    await run(git, target, "init", "--quiet", `--initial-branch=${branchName}`);
    return join(target, ".git");
  }
  await git.withShallowGitWorkspaceClone({ localDir: folder, snapshot: { headCommit, branchName } }, async (clone) => {
    await rename(join(clone, ".git"), join(target, ".git"));
  });
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
    const localObjects = await run(git, folder, "rev-parse", "--path-format=absolute", "--git-path", "objects");
    await writeFile(join(bare, "objects", "info", "alternates"), `${localObjects}\n`);
    await writeFile(join(bare, "HEAD"), `${head}\n`);
    const fetch = [
      "fetch",
      "--quiet",
      "--no-tags",
      "--no-write-fetch-head",
      "--no-auto-maintenance",
      "--no-recurse-submodules",
    ];
    if (local === undefined) fetch.push("--update-shallow");
    await run(git, folder, "-c", "fetch.fsckObjects=true", ...fetch, bare, "HEAD");
    // Git takes a commit without its parents from a shallow repository, and the helper would move HEAD to it
    await run(git, folder, "rev-list", "--quiet", head, ...(local ? ["--not", local] : []));
    if (local === undefined) await run(git, folder, "update-ref", "HEAD", head, NO_COMMIT);
    else if (known && !(await isGrafted(git, folder, head)))
      await git.integrateImportedGitHead({ localDir: folder, importedHead: head });
    else if (!known) await run(git, folder, "merge-base", "--is-ancestor", head, "HEAD");
    await moveIndex(git, folder, before);
  });
}

/** Whether Paperclip's helper has put the commit's tree on top of HEAD before: it would do so again. */
async function isGrafted(git: Git, folder: string, head: string): Promise<boolean> {
  const text = ` graft ${head.slice(0, 12)}: `;
  return (await run(git, folder, "log", "-1", "--format=%H", "--fixed-strings", `--grep=${text}`, "HEAD")) !== "";
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
  const url = await run(git, folder, "config", "--file", config, "--get", "remote.origin.url").catch(() => "");
  const origin = git.sanitizeGitRemoteUrl(url);
  // allow-remote: the one that the agent has cloned, if there is one; a later run may need it
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
  const content = blocks(files.flatMap(([, file]) => file.blocks));
  for (const [name, file] of files) {
    await mkdir(dirname(join(folder, name)), { recursive: true });
    await writeContent(join(folder, name), file, content);
  }
}
