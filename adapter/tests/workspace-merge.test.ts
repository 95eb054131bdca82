/** The three-way way back of files, with random trees: nothing that is here is lost, and nothing of the agent's. */

import { chmodSync, lstatSync, mkdirSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { cp, readFile } from "node:fs/promises";
import { join } from "node:path";
import { expect, test } from "vitest";
import { applyChanges } from "../src/workspace/merge.ts";
import { contentOf, type Entry, type Scan, scan } from "../src/workspace/tree.ts";
import { contents, temporary } from "./support/workspaces.ts";

const SUFFIX = "agent-12345678";
const NAMES = ["a", "b", "c ü", "-d"];

/** The same sequence for each seed (mulberry32). */
function random(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) % below;
  };
}

/** Some changes of a folder; every content has `mark` in it, so that it is nobody else's. */
function change(folder: string, next: (below: number) => number, mark: string, times: number): void {
  for (let n = 0; n < times; n++) {
    const depth = 1 + next(3);
    const path = Array.from({ length: depth }, () => NAMES[next(NAMES.length)]).join("/");
    const place = join(folder, path);
    const above = path.split("/").slice(0, -1);
    const blocked = above.some((_, at) => !isFolder(join(folder, ...above.slice(0, at + 1)), true));
    if (blocked) continue;
    const kind = next(6);
    if (kind < 2) rmSync(place, { recursive: true, force: true });
    if (kind === 0) continue;
    mkdirSync(join(folder, ...above), { recursive: true });
    if (kind === 1 || kind === 2) {
      if (isFolder(place, false)) rmSync(place, { recursive: true });
      rmSync(place, { force: true });
      writeFileSync(place, `${mark} ${n}`);
      chmodSync(place, 0o644);
    } else if (kind === 3) {
      rmSync(place, { recursive: true, force: true });
      symlinkSync(`${mark}-${n}`, place);
    } else if (kind === 4) {
      rmSync(place, { recursive: true, force: true });
      mkdirSync(place);
    } else if (isFolder(place, false)) chmodSync(place, [0o755, 0o700][next(2)] ?? 0o755);
  }
}

function isFolder(place: string, absent: boolean): boolean {
  const found = lstatSync(place, { throwIfNoEntry: false });
  return found === undefined ? absent : found.isDirectory();
}

function scanned(folder: string): Promise<Scan> {
  return scan(
    folder,
    () => false,
    { bytes: null, entries: null },
    async (place) => join(place, ".git"),
  );
}

function byPath({ entries }: Scan): Map<string, Entry> {
  return new Map(entries.map((entry) => [entry.path, entry]));
}

class Killed extends Error {}

test.each(Array.from({ length: 150 }, (_, seed) => seed))("random trees, seed %i", async (seed) => {
  const next = random(seed);
  const [base, theirs, ours] = [temporary(), temporary(), temporary()];
  change(base, next, "base", 12);
  await cp(base, theirs, { recursive: true, verbatimSymlinks: true });
  await cp(base, ours, { recursive: true, verbatimSymlinks: true });
  change(theirs, next, "theirs", 6);
  change(ours, next, "ours", seed % 3 === 0 ? 0 : 6);
  const [was, made] = [await scanned(base), await scanned(theirs)];
  const [before, agents] = [await contents(ours), await contents(theirs)];
  const at = await contents(base);

  const apply = (left: number) =>
    applyChanges({
      root: ours,
      base: byPath(was),
      theirs: byPath(made),
      suffix: SUFFIX,
      ignored: () => false,
      async *blocks(files) {
        for (const name of files.flatMap(({ blocks }) => blocks)) {
          if (left-- === 0) throw new Killed();
          yield await contentOf(made.sources.get(name) as never);
        }
      },
    });
  for (let left = 0; left < next(4); left++)
    await apply(left).catch((error) => {
      if (!(error instanceof Killed)) throw error;
    });
  const { conflicts } = await apply(Number.POSITIVE_INFINITY);
  const after = await contents(ours);

  const unmarked = (path: string) => path.replaceAll(new RegExp(`\\.${SUFFIX}(-\\d+)?`, "g"), "");
  const texts = Object.entries(after).map(([path, text]) => `${unmarked(path)}=${text}`);
  for (const [path, text] of Object.entries(before)) {
    // what was changed here is at its place, byte for byte
    if (!path.endsWith("/") && at[path] !== text) expect(after[path], `ours: ${path}`).toBe(text);
    // what nobody else has touched is there, too
    if (!path.endsWith("/") && agents[path] === at[path]) expect(after[path], `kept: ${path}`).toBe(text);
  }
  for (const [path, text] of Object.entries(agents))
    if (!path.endsWith("/") && at[path] !== text) expect(texts, `theirs: ${path}`).toContain(`${path}=${text}`);
  expect(Object.keys(after).filter((path) => path.includes(`.${SUFFIX}-`) && /-[0-9a-f]{16}$/.test(path))).toEqual([]);
  if (JSON.stringify(before) === JSON.stringify(at)) {
    expect(conflicts).toEqual([]);
    expect(after).toEqual(agents);
  }
  // once more: the same conflicts, and nothing changes
  expect((await apply(Number.POSITIVE_INFINITY)).conflicts.sort()).toEqual(conflicts.sort());
  expect(await contents(ours)).toEqual(after);
});

test("a local change that comes while the agent's file is being written is kept", async () => {
  const [base, theirs, ours] = [temporary(), temporary(), temporary()];
  for (const folder of [base, ours]) writeFileSync(join(folder, "a"), "base");
  writeFileSync(join(theirs, "a"), "theirs");
  const made = await scanned(theirs);
  const { conflicts } = await applyChanges({
    root: ours,
    base: byPath(await scanned(base)),
    theirs: byPath(made),
    suffix: SUFFIX,
    ignored: () => false,
    async *blocks(files) {
      for (const name of files.flatMap(({ blocks }) => blocks)) {
        writeFileSync(join(ours, "a"), "a local change, just now");
        yield await contentOf(made.sources.get(name) as never);
      }
    },
  });
  expect(conflicts).toEqual(["workspace/a"]);
  expect(await readFile(join(ours, "a"), "utf8")).toBe("a local change, just now");
  expect(await readFile(join(ours, `a.${SUFFIX}`), "utf8")).toBe("theirs");
});
