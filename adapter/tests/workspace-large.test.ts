/** Large folders go out, are restored, are changed, and come back. With `LARGE=1` only; prints what each process takes. */

import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { appendFileSync, mkdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { Case, git, realHelpers, temporary, usage, workspaceService } from "./support/workspaces.ts";

const service = workspaceService();

/** Bytes that no compression makes smaller, the same for each seed. */
function noise(seed: string, size: number): Buffer {
  const blocks: Buffer[] = [];
  for (let n = 0; n * 32 < size; n++) blocks.push(createHash("sha256").update(`${seed} ${n}`).digest());
  return Buffer.concat(blocks).subarray(0, size);
}

function folderOf(files: number, size: number): string {
  const [folder, content] = [temporary(), noise("content", size)];
  for (let n = 0; n < files; n++) {
    const below = join(folder, `${n % 100}`, `${n % 7}`);
    mkdirSync(below, { recursive: true });
    content.write(`${n}`.padEnd(8), 0);
    if (size > 1024 * 1024) for (let at = 0; at < size; at += 1024 * 1024) content.write(`${n}`.padEnd(8), at);
    writeFileSync(join(below, `${n}`), content);
  }
  return folder;
}

/** Fails unless both folders are the same, but for Git's own. */
function expectSame(folder: string, pod: string): void {
  execFileSync("diff", ["-r", "--no-dereference", "-x", ".git", folder, pod]);
  const listing = (of: string) =>
    execFileSync("sh", ["-c", "find . -name .git -prune -o -printf '%P %m %y %l\\n' | sort | sha256sum"], { cwd: of });
  expect(listing(folder)).toEqual(listing(pod));
}

async function roundTrip(files: number, size: number, change: (pod: string) => void, inGit = false): Promise<void> {
  const folder = folderOf(files, size);
  if (inGit) {
    git(folder, "init", "-q", "-b", "main");
    git(folder, "add", "-A");
    git(folder, "commit", "-q", "-m", "first");
  }
  const run = new Case(service, folder, await realHelpers());
  const measured = async (what: string, work: () => Promise<void>) => {
    const line = await usage(service, work);
    process.stdout.write(`${files} files of ${size} bytes, ${what}: ${line}\n`);
  };
  await measured("out", () => run.send());
  await measured("restored", () => run.restore());
  expectSame(folder, run.pod);
  change(run.pod);
  await measured("last checkpoint", () => run.end());
  await measured("back", () => run.back());
  expectSame(folder, run.pod);
  if (inGit) expect(git(folder, "log", "--format=%s")).toBe("second\nfirst");
}

const every = (pod: string) =>
  execFileSync("sh", ["-c", 'find "$0" -type f ! -path "*/.git/*" | while read -r f; do echo x >>"$f"; done', pod]);

test.runIf(process.env.LARGE)("100 MB in 5,000 files, all of which change", async () => {
  await roundTrip(5000, 20_000, every);
});

test.runIf(process.env.LARGE)("50,000 files in a repository", async () => {
  const change = (pod: string) => {
    rmSync(join(pod, "7"), { recursive: true });
    appendFileSync(join(pod, "8", "1", "8"), "changed");
    git(pod, "add", "-A");
    git(pod, "commit", "-q", "-m", "second");
    writeFileSync(join(pod, "untracked"), "1");
  };
  await roundTrip(50_000, 1000, change, true);
});

test.runIf(process.env.LARGE)("a gigabyte in a hundred files", async () => {
  await roundTrip(100, 10 * 1024 * 1024 + 1, (pod) => {
    rmSync(join(pod, "7"), { recursive: true });
    appendFileSync(join(pod, "8", "1", "8"), "changed");
  });
});
