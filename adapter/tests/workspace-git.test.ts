/** Git repositories that go out and come back, with Paperclip's own helpers and the real workspace service. */

import { chmodSync, existsSync, lstatSync, mkdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { ConfigurationError } from "../src/errors.ts";
import {
  Case,
  contents,
  git,
  put,
  realHelpers,
  repository,
  temporary,
  workspaceService,
} from "./support/workspaces.ts";

const service = workspaceService();

async function run(folder: string, config: object = {}): Promise<Case> {
  const each = new Case(service, folder, await realHelpers(), config);
  await each.out();
  return each;
}

/** The agent's commit of all that is in its folder. */
function commit(folder: string, message: string): string {
  git(folder, "add", "-A");
  git(folder, "commit", "-q", "-m", message);
  return git(folder, "rev-parse", "HEAD");
}

function references(folder: string): string {
  return git(folder, "for-each-ref", "--format=%(refname)");
}

test("without Paperclip's helpers a repository is refused before the run", async () => {
  await expect(new Case(service, repository()).out()).rejects.toThrow(ConfigurationError);
  await expect(new Case(service, repository()).out()).rejects.toThrow("has no runLocalGit");
});

describe("a repository", () => {
  test("of a worktree has a real .git in the pod, with its HEAD and one commit, and every file as it is here", async () => {
    const main = repository({
      tracked: "1",
      dirty: "1",
      staged: "1",
      deleted: "1",
      mode: "1",
      link: "1",
      ".gitignore": "ignored\n",
    });
    const folder = join(temporary(), "tree");
    git(main, "worktree", "add", "-q", "-b", "feature", folder);
    put(folder, "dirty", "2");
    put(folder, "staged", "2");
    git(folder, "add", "staged");
    rmSync(join(folder, "deleted"));
    chmodSync(join(folder, "mode"), 0o755);
    rmSync(join(folder, "link"));
    symlinkSync("tracked", join(folder, "link"));
    put(folder, "ignored/deep", "3");
    put(folder, "untracked ü\n", "4");
    expect(lstatSync(join(folder, ".git")).isFile()).toBe(true);
    const each = await run(folder);
    expect(await contents(each.pod)).toEqual(await contents(folder));
    expect(lstatSync(join(each.pod, ".git")).isDirectory()).toBe(true);
    expect(git(each.pod, "rev-parse", "HEAD")).toBe(git(folder, "rev-parse", "HEAD"));
    expect(git(each.pod, "branch", "--show-current")).toBe("feature");
    expect(git(each.pod, "fsck")).toBe("");
    git(folder, "reset", "-q"); // what is staged here is a change of its file there
    expect(git(each.pod, "status", "--porcelain", "-z")).toBe(git(folder, "status", "--porcelain", "-z"));
    expect(references(main)).toBe("refs/heads/feature\nrefs/heads/main");
  });

  test("goes out without logins", async () => {
    const folder = repository();
    git(folder, "remote", "add", "origin", "https://ada:s3cret@example.org/x.git?token=s3cret");
    git(folder, "remote", "add", "other", "https://ada:s3cret@example.org/y.git");
    git(folder, "config", "http.extraheader", "Authorization: Basic s3cret");
    git(folder, "config", "http.https://example.org/.extraheader", "Authorization: Basic s3cret");
    git(folder, "config", "credential.helper", "!echo password=s3cret");
    const each = await run(folder);
    expect(git(each.pod, "remote", "get-url", "origin")).toBe("https://example.org/x.git");
    const sent = Object.values(await contents(each.pod, true)).join();
    expect(sent).not.toContain("s3cret");
    expect(git(each.pod, "config", "--local", "--list")).not.toContain("extraheader");
  });

  test("gets the agent's commits, and what is dirty on top of them", async () => {
    const folder = repository({ a: "1", b: "1", c: "1" });
    put(folder, "b", "dirty here");
    put(folder, "c", "staged here");
    git(folder, "add", "c");
    const each = await run(folder);
    git(each.pod, "checkout", "-q", "--", "b", "c");
    put(each.pod, "a", "2");
    put(each.pod, "b", "dirty here");
    put(each.pod, "c", "staged here");
    git(each.pod, "add", "a");
    git(each.pod, "commit", "-q", "-m", "second");
    const head = git(each.pod, "rev-parse", "HEAD");
    put(each.pod, "a", "3");
    put(each.pod, "untracked", "4");
    await each.end();
    await each.back();
    expect(git(folder, "rev-parse", "main")).toBe(head);
    expect(git(folder, "log", "--format=%s")).toBe("second\nfirst");
    expect(git(folder, "status", "--porcelain")).toBe("M a\n M b\nM  c\n?? untracked");
    expect(await contents(folder)).toEqual(await contents(each.pod));
    expect(references(folder)).toBe("refs/heads/main");
    expect(existsSync(join(folder, ".git", "shallow"))).toBe(false);
    expect(git(folder, "fsck")).toBe("");
  });

  test("that has got a commit meanwhile gets a merge", async () => {
    const folder = repository({ a: "1", b: "1" });
    const each = await run(folder);
    put(each.pod, "a", "2");
    const theirs = commit(each.pod, "theirs");
    put(folder, "b", "2");
    const ours = commit(folder, "ours");
    await each.end();
    await each.back();
    expect(git(folder, "log", "-1", "--format=%P")).toBe(`${ours} ${theirs}`);
    expect(git(folder, "status", "--porcelain")).toBe("");
    expect(await contents(folder)).toEqual({ a: "644 2", b: "644 2" });
    const head = git(folder, "rev-parse", "HEAD");
    await each.end(); // as if the return had not been recorded
    await each.back();
    expect(git(folder, "rev-parse", "HEAD")).toBe(head);
    expect(git(folder, "status", "--porcelain")).toBe("");
  });

  test("whose histories conflict keeps its own, and the failure says so", async () => {
    const folder = repository({ a: "1", b: "1" });
    const each = await run(folder);
    put(each.pod, "a", "theirs");
    put(each.pod, "b", "2");
    commit(each.pod, "theirs");
    put(folder, "a", "ours");
    const ours = commit(folder, "ours");
    await each.end();
    const error = await each.back().catch((error: Error) => error);
    expect(`${error}`).toContain('the commits of "workspace" (both changed a)');
    expect(`${error}`).toContain('"a" was changed here and by the agent');
    expect(git(folder, "rev-parse", "HEAD")).toBe(ours);
    expect(references(folder)).toBe("refs/heads/main");
    const suffix = `agent-${each.runId.slice(0, 8)}`;
    expect(await contents(folder)).toEqual({ a: "644 ours", [`a.${suffix}`]: "644 theirs", b: "644 2" });
  });

  test("without commits goes out, and gets the agent's first", async () => {
    const folder = temporary();
    git(folder, "init", "-q", "-b", "trunk");
    put(folder, "a", "1");
    const each = await run(folder);
    expect(git(each.pod, "branch", "--show-current")).toBe("trunk");
    const head = commit(each.pod, "first");
    await each.end();
    await each.back();
    expect(git(folder, "rev-parse", "trunk")).toBe(head);
    expect(git(folder, "status", "--porcelain")).toBe("");
  });

  test("with a submodule goes out whole, and gets the commits in both", async () => {
    const library = repository({ x: "1" });
    const folder = repository({ a: "1" });
    git(folder, "submodule", "--quiet", "add", library, "lib");
    commit(folder, "with a library");
    expect(lstatSync(join(folder, "lib", ".git")).isFile()).toBe(true);
    const each = await run(folder);
    expect(git(each.pod, "status", "--porcelain")).toBe("");
    put(each.pod, "lib/x", "2");
    const inner = commit(join(each.pod, "lib"), "inner");
    const outer = commit(each.pod, "outer");
    await each.end();
    await each.back();
    expect(git(join(folder, "lib"), "rev-parse", "HEAD")).toBe(inner);
    expect(git(folder, "rev-parse", "HEAD")).toBe(outer);
    expect(git(folder, "status", "--porcelain")).toBe("");
    expect(lstatSync(join(folder, "lib", ".git")).isFile()).toBe(true);
  });

  test("that the agent has cloned is one here, with its commits and the address that it came from", async () => {
    const folder = temporary();
    const origin = repository({ x: "1" });
    const each = await run(folder);
    git(each.pod, "clone", "-q", origin, "cloned");
    const cloned = join(each.pod, "cloned");
    git(cloned, "remote", "set-url", "origin", "https://ada:s3cret@example.org/x.git");
    git(cloned, "config", "core.fsmonitor", "touch /tmp/evil; false");
    writeFileSync(join(cloned, ".git", "hooks", "post-checkout"), "#!/bin/sh\n", { mode: 0o755 });
    put(cloned, "x", "2");
    const head = commit(cloned, "second");
    await each.end();
    await each.back();
    const here = join(folder, "cloned");
    expect(git(here, "rev-parse", "main")).toBe(head);
    expect(git(here, "status", "--porcelain")).toBe("");
    expect(git(here, "log", "--format=%s")).toBe("second\nfirst");
    expect(git(here, "remote", "get-url", "origin")).toBe("https://example.org/x.git");
    expect(readFileSync(join(here, ".git", "config"), "utf8")).not.toMatch(/fsmonitor|s3cret/);
    expect(existsSync(join(here, ".git", "hooks", "post-checkout"))).toBe(false);
  });

  test("that the agent has cloned without its history has that commit here", async () => {
    const folder = temporary();
    const origin = repository({ x: "1" });
    put(origin, "x", "2");
    const head = commit(origin, "second");
    const each = await run(folder);
    git(each.pod, "clone", "-q", "--depth=1", `file://${origin}`, "cloned");
    await each.end();
    await each.back();
    expect(git(join(folder, "cloned"), "rev-parse", "HEAD")).toBe(head);
    expect(git(join(folder, "cloned"), "log", "--format=%s")).toBe("second");
    expect(git(join(folder, "cloned"), "fsck")).toBe("");
    expect(git(join(folder, "cloned"), "status", "--porcelain")).toBe("");
  });

  test("does not get commits whose history the agent has left out", async () => {
    const folder = repository({ a: "1" });
    const upstream = repository({ b: "1" });
    put(upstream, "b", "2");
    commit(upstream, "second");
    const head = git(folder, "rev-parse", "HEAD");
    const each = await run(folder);
    git(each.pod, "fetch", "-q", "--depth=1", `file://${upstream}`, "main");
    git(each.pod, "merge", "-q", "--allow-unrelated-histories", "-m", "merged", "FETCH_HEAD");
    await each.end();
    await expect(each.back()).rejects.toThrow('the commits of "workspace" (');
    expect(git(folder, "rev-parse", "HEAD")).toBe(head);
    expect(git(folder, "log", "--format=%s")).toBe("first");
    expect(await contents(folder)).toEqual({ a: "644 1", b: "644 2" });
  });

  test("runs nothing that the agent has put into its .git", async () => {
    const folder = repository({ a: "1" });
    const mark = join(temporary(), "ran");
    const program = join(temporary(), "program");
    writeFileSync(program, `#!/bin/sh\ntouch ${mark}\n`, { mode: 0o755 });
    const each = await run(folder);
    put(each.pod, "a", "2");
    commit(each.pod, "second");
    for (const name of ["core.fsmonitor", "core.sshCommand", "uploadpack.packObjectsHook", "core.editor", "gc.auto"])
      git(each.pod, "config", name, name === "gc.auto" ? "1" : program);
    git(each.pod, "config", "core.hooksPath", join(program, ".."));
    for (const hook of ["post-update", "pre-receive", "reference-transaction"])
      writeFileSync(join(each.pod, ".git", "hooks", hook), `#!/bin/sh\ntouch ${mark}\n`, { mode: 0o755 });
    mkdirSync(join(each.pod, ".git", "objects", "info"), { recursive: true });
    const secret = repository({ secret: "1" });
    writeFileSync(join(each.pod, ".git", "objects", "info", "alternates"), `${secret}/.git/objects\n`);
    rmSync(mark, { force: true });
    await each.end();
    rmSync(mark, { force: true }); // reading the pod's folder does not run Git
    await each.back();
    expect(existsSync(mark)).toBe(false);
    expect(git(folder, "log", "--format=%s")).toBe("second\nfirst");
    expect(() => git(folder, "cat-file", "-e", git(secret, "rev-parse", "HEAD"))).toThrow();
  });

  test("keeps its history where the agent has deleted or broken its own", async () => {
    const folder = repository({ a: "1" });
    const head = git(folder, "rev-parse", "HEAD");
    const each = await run(folder);
    rmSync(join(each.pod, ".git"), { recursive: true });
    put(each.pod, "a", "2");
    await each.end();
    await each.back();
    expect(git(folder, "rev-parse", "HEAD")).toBe(head);
    expect(await contents(folder)).toEqual({ a: "644 2" });
  });

  test("with an amended commit gets it on top of its own", async () => {
    const folder = repository({ a: "1" });
    const each = await run(folder);
    put(each.pod, "a", "2");
    git(each.pod, "commit", "-q", "-a", "--amend", "-m", "amended");
    await each.end();
    await each.back();
    expect(git(folder, "log", "--format=%s").split("\n")).toEqual(["amended", "first"]);
    expect(git(folder, "status", "--porcelain")).toBe("");
    const head = git(folder, "rev-parse", "HEAD");
    await each.end();
    await each.back();
    expect(git(folder, "log", "--format=%s").split("\n")).toEqual(["amended", "first"]);
    expect(git(folder, "rev-parse", "HEAD")).toBe(head);
  });

  test("of LFS goes out as its files are here", async () => {
    const pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n";
    const folder = repository({ ".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n", "a.bin": pointer });
    put(folder, "b.bin", "content");
    const each = await run(folder);
    expect(await contents(each.pod)).toEqual(await contents(folder));
  });

  test("with a sparse checkout, or with a broken .git, is refused by name", async () => {
    const sparse = repository({ a: "1", "b/c": "1" });
    git(sparse, "sparse-checkout", "set", "b");
    const helpers = await realHelpers();
    await expect(new Case(service, sparse, helpers).out()).rejects.toThrow(
      '"workspace/.git", which is a sparse checkout',
    );
    const broken = temporary();
    put(broken, "x/.git", "gitdir: /nowhere\n");
    await expect(new Case(service, broken, helpers).out()).rejects.toThrow(
      '"workspace/x/.git", which is no repository',
    );
    const left = new Case(service, broken, helpers, { workspaceIgnore: ["x/.git"] });
    await left.out();
  });

  test("in a folder of which the workspace is a part goes out as files alone", async () => {
    const outer = repository({ "part/a": "1" });
    const each = await run(join(outer, "part"));
    expect(await contents(each.pod, true)).toEqual({ a: "644 1" });
  });
});
