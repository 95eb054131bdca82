/** Whole round trips by the real parts: what is out of the ordinary in a folder is in the pod as it is here, and back. */

import { execFileSync } from "node:child_process";
import {
  chmodSync,
  closeSync,
  existsSync,
  ftruncateSync,
  linkSync,
  lstatSync,
  mkdirSync,
  openSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { afterEach, describe, expect, test } from "vitest";
import {
  Case,
  contents,
  git,
  put,
  realHelpers,
  refusal,
  repository,
  temporary,
  workspaceService,
} from "./support/workspaces.ts";

const service = workspaceService();
const SUBMODULES = ["-c", "protocol.file.allow=always", "submodule", "--quiet"];

/** Git's own state: what people would see of it. */
function stateOf(folder: string) {
  return {
    head: git(folder, "rev-parse", "HEAD"),
    branch: git(folder, "branch", "--show-current"),
    status: git(folder, "status", "--porcelain", "-z"),
    stash: git(folder, "stash", "list"),
    tags: git(folder, "tag"),
    branches: git(folder, "for-each-ref", "--format=%(refname)"),
    fsck: git(folder, "fsck", "--no-dangling"),
  };
}

/** The folder goes out, and is in the pod as it is here. */
async function inPod(folder: string, config: object = {}): Promise<Case> {
  const before = await contents(folder);
  const run = new Case(service, folder, await realHelpers(), config);
  await run.out();
  expect(await contents(run.pod)).toEqual(before);
  expect(await contents(folder)).toEqual(before);
  return run;
}

/** What the pod has comes back, and is here as it is there. */
async function returned(run: Case, folder: string): Promise<void> {
  await run.end();
  await run.back();
  expect(await contents(folder)).toEqual(await contents(run.pod));
}

/** The agent's changes of every kind, of which the first is committed. */
function work(pod: string): string {
  put(pod, "agent/committed", "1");
  git(pod, "add", "agent/committed");
  git(pod, "commit", "-q", "-m", "the agent's");
  put(pod, "agent/untracked", "1");
  put(pod, "agent/program", "#!/bin/sh\n");
  chmodSync(join(pod, "agent/program"), 0o755);
  symlinkSync("../agent/committed", join(pod, "agent/link"));
  return git(pod, "rev-parse", "HEAD");
}

/** The agent has made a commit of what it changed, and it is HEAD here. */
async function carried(folder: string): Promise<Case> {
  const run = await inPod(folder);
  expect(git(run.pod, "rev-parse", "HEAD")).toBe(git(folder, "rev-parse", "HEAD"));
  expect(git(run.pod, "fsck", "--no-dangling")).toBe("");
  const before = stateOf(folder);
  const head = work(run.pod);
  await returned(run, folder);
  const after = stateOf(folder);
  const status = [before.status, "?? agent/link", "?? agent/program", "?? agent/untracked"].join("\0");
  const sorted = (list: string) => list.split("\0").filter(Boolean).sort();
  expect({ ...after, status: sorted(after.status) }).toEqual({ ...before, head, status: sorted(status) });
  return run;
}

describe("names", () => {
  test("that Linux has are the same in the pod and back", async () => {
    const folder = temporary();
    const names = [
      "line\nbreak",
      "back\\slash",
      "-rf",
      "--",
      "~",
      "a b ",
      " c",
      "'\"$(x)`",
      "\t\u0001\x7f",
      "\u{1f600}",
    ];
    names.push(
      "caf\u00e9",
      "cafe\u0301",
      "README",
      "readme",
      "n".repeat(255),
      "\u00e9".repeat(127),
      "%2e%2e",
      "con",
      "a:b",
      "*",
    );
    for (const name of names) put(folder, name, name);
    for (const name of names) put(folder, join("in", name, name), name);
    const run = await inPod(folder);
    for (const name of names) put(run.pod, name, `${name} changed`);
    for (const name of names) rmSync(join(run.pod, "in", name, name));
    for (const name of names) put(run.pod, join("new", name), name);
    await returned(run, folder);
  });

  test("that are deeper than a checkpoint reads are refused", async () => {
    const folder = temporary();
    put(folder, `${"d/".repeat(127)}file`, "1");
    await returned(await inPod(folder), folder);
    put(folder, `${"d/".repeat(128)}file`, "1");
    expect(await refusal(new Case(service, folder).out())).toContain('d/file" (a path that is too long)');
  });
});

describe("links", () => {
  test("to nowhere, absolute, out of the folder, in a loop and to a folder stay links", async () => {
    const folder = temporary();
    const outside = temporary();
    put(outside, "file", "not the agent's");
    put(folder, "folder/file", "1");
    const targets = [
      "nowhere",
      "/etc/passwd",
      outside,
      "../..",
      "loop",
      "folder",
      "folder/file",
      ".",
      "x".repeat(4000),
    ];
    targets.forEach((target, n) => {
      symlinkSync(target, join(folder, `link-${n}`));
    });
    symlinkSync("loop", join(folder, "loop"));
    const run = await inPod(folder);
    targets.forEach((target, n) => {
      rmSync(join(run.pod, `link-${n}`));
      symlinkSync(`${n}`, join(run.pod, `link-${n}`));
      symlinkSync(target, join(run.pod, `new-${n}`));
    });
    rmSync(join(run.pod, "loop"));
    put(run.pod, "loop/file", "a folder now");
    await returned(run, folder);
    expect(await contents(outside)).toEqual({ file: "644 not the agent's" });
  });

  test("of one file by two names have the content in both, and stay so if it does not change", async () => {
    const folder = temporary();
    put(folder, "a", "1");
    put(folder, "c", "1");
    linkSync(join(folder, "a"), join(folder, "b"));
    linkSync(join(folder, "c"), join(folder, "d"));
    const run = await inPod(folder);
    put(run.pod, "a", "2");
    await returned(run, folder);
    expect(lstatSync(join(folder, "c")).ino).toBe(lstatSync(join(folder, "d")).ino);
  });
});

test("modes, empty files and folders, and holes are the same in the pod and back", async () => {
  const folder = temporary();
  const modes = [0o600, 0o755, 0o444, 0o400, 0o777, 0o4755, 0o2755, 0o1644];
  for (const mode of modes) put(folder, `file-${mode.toString(8)}`, "1");
  for (const mode of modes) chmodSync(join(folder, `file-${mode.toString(8)}`), mode);
  for (const mode of [0o700, 0o755, 0o500, 0o1777, 0o2775]) {
    put(folder, `dir-${mode.toString(8)}/file`, "1");
    chmodSync(join(folder, `dir-${mode.toString(8)}`), mode);
  }
  put(folder, "empty", "");
  mkdirSync(join(folder, "nothing/in/it"), { recursive: true });
  const file = openSync(join(folder, "sparse"), "w");
  ftruncateSync(file, 64 * 1024 * 1024 + 1);
  closeSync(file);
  const run = await inPod(folder);
  chmodSync(join(run.pod, "file-600"), 0o640);
  chmodSync(join(run.pod, "dir-755"), 0o711);
  put(run.pod, "dir-500/file", "2");
  put(run.pod, "empty", "no more");
  put(run.pod, "file-644", "");
  rmSync(join(run.pod, "nothing/in/it"), { recursive: true });
  mkdirSync(join(run.pod, "nothing/else"));
  await returned(run, folder);
  expect(statSync(join(folder, "file-4755")).mode & 0o7777).toBe(0o4755);
  expect(statSync(join(folder, "dir-2775")).mode & 0o7777).toBe(0o2775);
});

test.runIf(process.getuid?.() === 0)("a device is refused by name", async () => {
  const folder = temporary();
  execFileSync("mknod", [join(folder, "null"), "c", "1", "3"]);
  expect(await refusal(new Case(service, folder).out())).toContain('"workspace/null" (a socket, named pipe or device)');
});

test.runIf(process.getuid?.() === 0)("what Paperclip may not read is refused by name", async () => {
  const folder = temporary();
  chmodSync(folder, 0o755);
  put(folder, "secret", "1");
  put(folder, "folder/file", "1");
  chmodSync(join(folder, "secret"), 0);
  chmodSync(join(folder, "folder"), 0);
  process.seteuid?.(65534);
  try {
    const message = await refusal(new Case(service, folder).out());
    expect(message).toContain('"workspace/secret" (EACCES)');
    expect(message).toContain('"workspace/folder" (EACCES)');
  } finally {
    process.seteuid?.(0);
  }
});

describe("a repository", () => {
  test("this one", async () => {
    const folder = join(temporary(), "clone");
    git(join(import.meta.dirname, "..", ".."), "clone", "-q", "--no-hardlinks", ".", folder);
    const run = await carried(folder);
    expect(git(run.pod, "status", "--porcelain", "--untracked-files=no")).toBe("");
    expect(git(folder, "diff", "--stat", "HEAD~1")).toContain("agent/committed");
  });

  test("that is shallow itself, with a detached HEAD and tags", async () => {
    const origin = repository({ a: "1", b: "1" });
    for (const n of ["2", "3", "4"]) {
      put(origin, "a", n);
      git(origin, "commit", "-q", "-am", n);
    }
    git(origin, "tag", "-m", "a tag", "v1");
    const folder = join(temporary(), "clone");
    git(temporary(), "clone", "-q", "--depth=2", `file://${origin}`, folder);
    git(folder, "checkout", "-q", "--detach");
    git(folder, "tag", "here");
    await carried(folder);
    expect(git(folder, "log", "--format=%s")).toBe("the agent's\n4\n3");
  });

  test("with a stash, staged, unstaged, deleted and moved files keeps each as it was", async () => {
    const folder = repository({ a: "1", b: "1", c: "1", d: "1", e: "1" });
    put(folder, "a", "stashed");
    git(folder, "stash", "-q");
    put(folder, "a", "staged");
    git(folder, "add", "a");
    put(folder, "b", "unstaged");
    rmSync(join(folder, "c"));
    git(folder, "rm", "-q", "d");
    git(folder, "mv", "e", "f");
    put(folder, "g", "new");
    git(folder, "add", "-N", "g");
    await carried(folder);
    expect(git(folder, "stash", "show", "-p")).toContain("+stashed");
  });

  function inTheMiddleOf(command: "merge" | "rebase"): string {
    const folder = repository({ a: "1", b: "1" });
    git(folder, "checkout", "-q", "-b", "side");
    put(folder, "a", "side");
    git(folder, "commit", "-q", "-am", "side");
    git(folder, "checkout", "-q", "main");
    put(folder, "a", "main");
    git(folder, "commit", "-q", "-am", "main");
    expect(() => git(folder, command, "-q", "side")).toThrow();
    return folder;
  }

  test.each(["merge", "rebase"] as const)("in the middle of a %s stays there", async (command) => {
    const folder = inTheMiddleOf(command);
    const before = stateOf(folder);
    const run = await inPod(folder);
    put(run.pod, "b", "2");
    await returned(run, folder);
    expect(stateOf(folder)).toEqual({ ...before, status: "UU a\0 M b\0" });
    git(folder, command, "--abort");
    expect(git(folder, "log", "-1", "--format=%s")).toBe("main");
  });

  test("in the middle of a merge that the agent resolves can end it here", async () => {
    const folder = inTheMiddleOf("merge");
    const run = await inPod(folder);
    put(run.pod, "a", "both");
    git(run.pod, "commit", "-q", "-am", "resolved");
    await returned(run, folder);
    expect(git(folder, "status", "--porcelain")).toBe("");
    git(folder, "commit", "-q", "-m", "merged");
    expect(git(folder, "log", "-1", "--format=%P").split(" ")[1]).toBe(git(folder, "rev-parse", "side"));
    expect(git(folder, "show", "HEAD:a")).toBe("both");
  });

  test("with CRLF and with attributes has the same state in the pod", async () => {
    const folder = repository({ ".gitattributes": "*.txt text\n*.bin -text\n*.sh text eol=lf\n", "b.bin": "a\r\n" });
    git(folder, "config", "core.autocrlf", "true");
    for (const name of ["a.txt", "c.sh", "plain"]) put(folder, name, "one\ntwo\n");
    git(folder, "add", "-A");
    git(folder, "commit", "-q", "-m", "text");
    for (const name of ["a.txt", "plain"]) rmSync(join(folder, name));
    git(folder, "checkout", "-q", "--", ".");
    expect((await contents(folder)).plain).toBe("644 one\r\ntwo\r\n");
    expect(git(folder, "status", "--porcelain")).toBe("");
    const run = await inPod(folder);
    expect(git(run.pod, "status", "--porcelain")).toBe("");
    put(run.pod, "plain", "one\r\ntwo\r\nthree\r\n");
    git(run.pod, "commit", "-q", "-am", "three");
    await returned(run, folder);
    expect(git(folder, "status", "--porcelain")).toBe("");
    expect(git(folder, "show", "HEAD:plain")).toBe("one\ntwo\nthree");
  });

  test("that ignores modes, and files by its own list, has the same state in the pod", async () => {
    const folder = repository({ a: "1" });
    git(folder, "config", "core.fileMode", "false");
    chmodSync(join(folder, "a"), 0o755);
    writeFileSync(join(folder, ".git", "info", "exclude"), "private\n");
    put(folder, "private", "1");
    const run = await inPod(folder);
    expect(git(run.pod, "status", "--porcelain")).toBe("");
  });

  test("has in the pod the author that it has here", async () => {
    const folder = repository({ a: "1" });
    git(folder, "config", "user.name", "Grace");
    git(folder, "config", "user.email", "grace@example.org");
    const run = await inPod(folder);
    expect(git(run.pod, "config", "--local", "--get-regexp", "^user")).toBe(
      "user.name Grace\nuser.email grace@example.org",
    );
  });

  test("in another one, that is no submodule, gets its own commits", async () => {
    const folder = repository({ a: "1" });
    const inner = join(folder, "inner");
    renameSync(repository({ b: "1" }), inner);
    const run = await inPod(folder);
    put(run.pod, "inner/b", "2");
    git(join(run.pod, "inner"), "commit", "-q", "-am", "inner");
    put(run.pod, "a", "2");
    git(run.pod, "commit", "-q", "-am", "outer");
    await returned(run, folder);
    expect(git(inner, "log", "--format=%s")).toBe("inner\nfirst");
    expect(git(folder, "log", "--format=%s")).toBe("outer\nfirst");
    expect(git(inner, "status", "--porcelain")).toBe("");
  });

  test("whose submodule has a submodule, and another one that is not there", async () => {
    const innermost = repository({ x: "1" });
    const library = repository({ y: "1" });
    git(library, ...SUBMODULES, "add", innermost, "innermost");
    git(library, "commit", "-q", "-m", "innermost");
    const folder = repository({ a: "1" });
    git(folder, ...SUBMODULES, "add", library, "lib");
    git(folder, ...SUBMODULES, "add", library, "absent");
    git(folder, "commit", "-q", "-m", "libraries");
    git(folder, ...SUBMODULES, "update", "--init", "--recursive", "lib");
    git(folder, "submodule", "--quiet", "deinit", "-f", "absent");
    await carried(folder);
    expect(git(join(folder, "lib", "innermost"), "status", "--porcelain")).toBe("");
    expect(lstatSync(join(folder, "lib", "innermost", ".git")).isFile()).toBe(true);
  });

  test("with more names of other files than Paperclip's own helpers read gets its commits", async () => {
    const folder = repository({ a: "1" });
    const name = "n".repeat(250);
    mkdirSync(join(folder, "many"));
    for (let n = 10_000; n < 14_500; n++) writeFileSync(join(folder, "many", `${n}${name}`), "");
    const run = new Case(service, folder, await realHelpers());
    await run.out();
    put(run.pod, "a", "2");
    git(run.pod, "commit", "-q", "-am", "second");
    put(folder, "b", "1");
    git(folder, "add", "b");
    git(folder, "commit", "-q", "-m", "ours");
    await run.end();
    await run.back();
    expect(git(folder, "log", "--format=%s", "--no-merges").split("\n").sort()).toEqual(["first", "ours", "second"]);
    expect(git(folder, "status", "--porcelain")).toBe("?? many/");
  });

  test("with an index of many names", async () => {
    const folder = repository({ a: "1" });
    const name = "n".repeat(200);
    const blob = git(folder, "rev-parse", "HEAD:a");
    const lines = Array.from({ length: 20_000 }, (_, n) => `100644 ${blob}\t${name}/${n}\n`).join("");
    execFileSync("git", ["-C", folder, "update-index", "--index-info"], { input: lines });
    git(folder, "commit", "-q", "-m", "many");
    const run = await inPod(folder);
    expect(git(run.pod, "ls-files", "--error-unmatch", `${name}/19999`)).toBe(`${name}/19999`);
  });
});

describe("filters of LFS", () => {
  const pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n";
  const environment = { ...process.env };
  afterEach(() => {
    process.env = { ...environment };
  });

  /** Git has LFS in its configuration for every repository, as `git lfs install` writes it. */
  function configured(program?: string): string {
    const home = temporary();
    const filter = [
      '[filter "lfs"]',
      "clean = git-lfs clean -- %f",
      "smudge = git-lfs smudge -- %f",
      "required = true",
    ];
    writeFileSync(join(home, "gitconfig"), `${filter.join("\n")}\n`);
    process.env.GIT_CONFIG_GLOBAL = join(home, "gitconfig");
    if (program !== undefined) {
      writeFileSync(join(home, "git-lfs"), program, { mode: 0o755 });
      process.env.PATH = `${home}:${process.env.PATH}`;
    }
    return home;
  }

  test.each([
    ["that are configured without the program", undefined],
    ["that fail for want of the server", `#!/bin/sh\n[ $1 = clean ] && printf '${pointer.replaceAll("\n", "\\n")}'\n`],
  ])("%s change nothing", async (_, program) => {
    const folder = repository({ ".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n", "a.bin": pointer });
    put(folder, "a.bin", "content");
    const before = await contents(folder);
    configured(program);
    const run = new Case(service, folder, await realHelpers());
    await run.out();
    expect(await contents(run.pod)).toEqual(before);
    process.env = { ...environment };
    expect(git(run.pod, "show", "HEAD:a.bin")).toBe(pointer.trim());
    put(run.pod, "b", "1");
    git(run.pod, "add", "b");
    git(run.pod, "commit", "-q", "-m", "b");
    configured(program);
    await returned(run, folder);
    expect(existsSync(join(folder, "b"))).toBe(true);
  });
});
