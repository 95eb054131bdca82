/** A folder that goes out and comes back, with the real workspace service. */

import { execFileSync } from "node:child_process";
import { chmodSync, existsSync, mkdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { rename } from "node:fs/promises";
import { createServer as createHttpServer } from "node:http";
import { createServer } from "node:net";
import { join } from "node:path";
import { buffer } from "node:stream/consumers";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { Aborted } from "../src/waits.ts";
import { NotReturned } from "../src/workspace/carried.ts";
import { matcher } from "../src/workspace/ignore.ts";
import { listening } from "./support/stack.ts";
import { Case, contents, put, refusal, temporary, workspaceService } from "./support/workspaces.ts";

const service = workspaceService();
const small = workspaceService(1000, 5);

/** Passes requests on, but for those that `onRequest` gives a status of its own. */
const proxy = { url: "", largest: 0, onRequest: (_: number): number | undefined => undefined };
const passing = createHttpServer(async (incoming, outgoing) => {
  seen += 1;
  const body = await buffer(incoming);
  const status = proxy.onRequest(seen);
  if (status !== undefined) return void outgoing.writeHead(status).end();
  const { method = "GET", headers } = incoming;
  const passed = { ...headers } as Record<string, string>;
  for (const name of ["host", "connection", "content-length"]) delete passed[name];
  const init = { method, headers: passed, body: method === "POST" ? body : undefined };
  const answer = await fetch(`${service.url}${incoming.url}`, init);
  const content = Buffer.from(await answer.arrayBuffer());
  proxy.largest = Math.max(proxy.largest, content.length, body.length);
  outgoing.writeHead(answer.status, Object.fromEntries(answer.headers)).end(content);
});
let seen = 0;
beforeAll(async () => {
  proxy.url = `http://127.0.0.1:${await listening(passing)}`;
});
afterAll(() => {
  passing.closeAllConnections();
  passing.close();
});

function folderOf(files: { [path: string]: string }): string {
  const folder = temporary();
  for (const [path, text] of Object.entries(files)) put(folder, path, text);
  return folder;
}

describe("out", () => {
  test("every file, link and empty folder is in the pod as it is here", async () => {
    const folder = folderOf({
      a: "one",
      "with space/ü\n-": "two",
      "-dash": "three",
      empty: "",
      large: "x".repeat(3 * 1024 * 1024 + 5),
    });
    mkdirSync(join(folder, "nothing in it"), { mode: 0o750 });
    chmodSync(join(folder, "-dash"), 0o755);
    symlinkSync("/etc/passwd", join(folder, "outside"));
    symlinkSync("nowhere", join(folder, "broken"));
    const run = new Case(service, folder);
    await run.out();
    expect(await contents(run.pod)).toEqual(await contents(folder));
    expect(run.lines.join()).toContain("the workspace went out: 5 files, 3145744 bytes, of which");
  });

  test("what the store has is not sent again", async () => {
    const folder = folderOf({ a: `${Math.random()}`.padEnd(5000, "y") });
    await new Case(service, folder).out();
    const again = new Case(service, folder);
    await again.out();
    expect(again.lines.join()).toContain("5000 bytes, of which 0 were sent");
  });

  test("a service that does not answer for a while is waited for", async () => {
    const folder = folderOf({ a: "one" });
    const run = new Case({ ...service, url: proxy.url }, folder, {}, { workspace: "carried" });
    const begun = seen;
    proxy.onRequest = (n) => (n < begun + 4 ? 503 : undefined);
    await run.out();
    expect(await contents(run.pod)).toEqual(await contents(folder));
    expect(run.lines.join()).toContain("cannot be reached (it answers 503)");
  });

  test("a socket, a named pipe and a name that is no UTF-8 are refused by name", async () => {
    const folder = folderOf({ a: "one" });
    execFileSync("mkfifo", [join(folder, "pipe")]);
    writeFileSync(Buffer.concat([Buffer.from(`${folder}/`), Buffer.from([0x62, 0xff])]), "");
    const server = createServer().listen(join(folder, "socket"));
    const message = await refusal(new Case(service, folder).out());
    server.close();
    expect(message).toMatch(/^context\.paperclipWorkspace\.cwd holds what cannot be carried: /);
    expect(message).toContain('"workspace/pipe" (a socket, named pipe or device)');
    expect(message).toContain('"workspace/socket" (');
    expect(message).toContain('"workspace/b\ufffd" (a name that is no UTF-8)');
    expect(message).toContain("config.workspaceIgnore");
  });

  test("more than five are counted", async () => {
    const folder = temporary();
    for (let n = 0; n < 7; n++) execFileSync("mkfifo", [join(folder, `pipe-${n}`)]);
    expect(await refusal(new Case(service, folder).out())).toMatch(/pipe-4" \([^)]*\) and 2 more:/);
  });

  test("a folder beyond the operator's limits is refused before anything is sent", async () => {
    const large = new Case(small, folderOf({ a: "x".repeat(1001) }));
    expect(await refusal(large.out())).toContain("has more than the 1000 bytes that the operator allows");
    const many = new Case(small, folderOf({ a: "", b: "", c: "", d: "", e: "" }));
    expect(await refusal(many.out())).toContain("has more than the 5 entries");
    expect(await large.store().last()).toBeUndefined();
  });

  test("what workspaceIgnore matches stays here, and so does what the agent makes there", async () => {
    const folder = folderOf({ "node_modules/a/b": "one", "src/x.log": "two", "src/x.ts": "three" });
    const run = new Case(service, folder, {}, { workspaceIgnore: ["node_modules", "*.log"] });
    await run.out();
    expect(Object.keys(await contents(run.pod))).toEqual(["src/", "src/x.ts"]);
    put(run.pod, "node_modules/a/b", "the agent's");
    put(run.pod, "y.ts", "four");
    await run.end();
    await run.back();
    expect(await contents(folder)).toMatchObject({ "node_modules/a/b": "644 one", "y.ts": "644 four" });
  });

  test("a folder that is not there, and a wrong list of patterns, are refused", async () => {
    expect(await refusal(new Case(service, "/nowhere").out())).toContain('names "/nowhere", which is no folder');
    expect(await refusal(new Case(service, "/", {}, { workspaceIgnore: { a: 1 } }).carried())).toBe(
      "config.workspaceIgnore must be a list of patterns",
    );
  });
});

const cases: { matches: [string, string, boolean][]; refused: [string, string][] } = JSON.parse(
  readFileSync(new URL("../../tests/fixtures/ignore.json", import.meta.url), "utf8"),
);

test.each(cases.matches)("the pattern %s and the path %s: %s", (pattern, path, matches) => {
  expect(matcher([pattern])(`workspace/${path}`)).toBe(matches);
});

test.each(cases.refused)("the pattern %s is refused by name", (pattern, fault) => {
  const refused = `config.workspaceIgnore has ${JSON.stringify(pattern)}, which ${fault}`;
  expect(() => matcher([pattern])).toThrow(refused);
});

test("a text area has a pattern in each line", () => {
  const ignored = matcher("# comment\n\n node modules \r\n*.log\n");
  const paths = ["node modules/a", "b.log", "# comment", "c"].map((path) => `workspace/${path}`);
  expect(paths.map(ignored)).toEqual([true, true, false, false]);
});

describe("whether a folder is carried", () => {
  const folder = temporary();
  test("as the configuration says, and without as the service says", async () => {
    const goesOut = async (config: object) => (await new Case(service, folder, {}, config).carried()).out !== undefined;
    expect(await goesOut({})).toBe(true);
    expect(await goesOut({ workspace: "" })).toBe(true);
    expect(await goesOut({ workspace: "carried" })).toBe(true);
    expect(await goesOut({ workspace: "shared" })).toBe(false);
    expect(await goesOut({ workspace: "ephemeral" })).toBe(false);
  });

  test.each([{}, { workspace: "carried" }])("the service is asked once for a run of %o", async (config) => {
    const run = new Case({ ...service, url: proxy.url }, folder, {}, config);
    const begun = seen;
    expect((await run.carried()).out).toBeDefined();
    expect(seen - begun).toBe(1);
  });
});

describe("back", () => {
  async function run(files: { [path: string]: string }) {
    const folder = folderOf(files);
    const run = new Case(service, folder);
    await run.out();
    return { folder, run };
  }

  test("what the agent changed, added and deleted is here, and what changed here stays", async () => {
    const { folder, run: each } = await run({ a: "1", b: "1", "c/d": "1", "c/e": "1", "f/g": "1", h: "1", i: "1" });
    put(each.pod, "a", "2");
    rmSync(join(each.pod, "c"), { recursive: true });
    put(each.pod, "new/x", "2");
    chmodSync(join(each.pod, "b"), 0o755);
    rmSync(join(each.pod, "h"));
    symlinkSync("a", join(each.pod, "h"));
    rmSync(join(each.pod, "i"));
    mkdirSync(join(each.pod, "i"));
    put(each.pod, "i/j", "2");
    chmodSync(join(each.pod, "f"), 0o700);
    put(folder, "f/g", "ours");
    put(folder, "ours", "ours");
    await each.end();
    await each.back();
    const expected = { ...(await contents(each.pod)), "f/g": "644 ours", ours: "644 ours" };
    expect(await contents(folder)).toEqual(expected);
    expect((await each.store().last())?.kind).toBe("returned");
    put(folder, "a", "3");
    await each.back(); // nothing more
    expect(readFileSync(join(folder, "a"), "utf8")).toBe("3");
  });

  test("what was changed on both sides stays as it is here, and the agent's is beside it", async () => {
    const { folder, run: each } = await run({ a: "1", b: "1", c: "1", "d/e": "1", f: "1" });
    const suffix = `agent-${each.runId.slice(0, 8)}`;
    put(each.pod, "a", "theirs");
    put(folder, "a", "ours");
    put(each.pod, "b", "theirs");
    rmSync(join(folder, "b"));
    rmSync(join(each.pod, "c"));
    put(folder, "c", "ours");
    put(each.pod, "d/e", "theirs");
    rmSync(join(folder, "d"), { recursive: true });
    const outside = temporary();
    symlinkSync(outside, join(folder, "d"));
    rmSync(join(each.pod, "f"));
    put(each.pod, "f/g", "theirs");
    put(folder, "f", "ours");
    put(folder, `a.${suffix}`, "was here");
    await each.end();
    const error = await each.back().catch((error: Error) => error);
    expect(error).toBeInstanceOf(NotReturned);
    for (const name of ["a", "b", "c", "d/e", "f"]) expect((error as Error).message).toContain(`"${name}"`);
    expect((error as Error).message).toContain(`\`agent-runs workspace ${each.runId} --into DIR\``);
    const after = await contents(folder);
    expect(after).toEqual({
      a: "644 ours",
      [`a.${suffix}`]: "644 was here",
      [`a.${suffix}-2`]: "644 theirs",
      [`b.${suffix}`]: "644 theirs",
      c: "644 ours",
      d: `-> ${outside}`,
      [`d.${suffix}/`]: "755",
      [`d.${suffix}/e`]: "644 theirs",
      f: "644 ours",
      [`f.${suffix}/`]: "755",
      [`f.${suffix}/g`]: "644 theirs",
    });
    expect(await contents(outside)).toEqual({});
    expect((await each.store().last())?.kind).toBe("returned");
  });

  test("after a kill before it was recorded, the same again changes nothing", async () => {
    const { folder, run: each } = await run({ a: "1", b: "1", "c/d": "1" });
    put(each.pod, "a", "theirs");
    put(each.pod, "b", "theirs");
    rmSync(join(each.pod, "c"), { recursive: true });
    put(each.pod, "x/y", "theirs");
    put(folder, "b", "ours");
    await each.end();
    await each.back().catch(() => undefined);
    const after = await contents(folder);
    await each.end(); // the ledger's last entry is no `returned`, as if it had not been written
    await expect(each.back()).rejects.toThrow('"b"');
    expect(await contents(folder)).toEqual(after);
  });

  test("cut off at any request, the same again ends as it would have without", async () => {
    const folder = folderOf({ a: "1", b: "1", "c/d": "1" });
    const each = new Case({ ...service, url: proxy.url }, folder);
    await each.out();
    for (const name of ["a", "b", "x/y"]) put(each.pod, name, "theirs".repeat(300_000));
    rmSync(join(each.pod, "c"), { recursive: true });
    put(folder, "b", "ours");
    await each.end();
    let cuts = 0;
    for (let answered = 0; answered < 30; answered++) {
      const [stop, begun] = [new AbortController(), seen];
      proxy.onRequest = (n) => (n > begun + 1 + answered ? (stop.abort() ?? undefined) : undefined);
      const error = await (await each.carried()).back(each.runId, stop.signal).catch((error: Error) => error);
      if (!(error instanceof Aborted)) break;
      cuts += 1;
    }
    proxy.onRequest = () => undefined;
    expect(cuts).toBeGreaterThan(3);
    expect((await each.store().last())?.kind).toBe("returned");
    const suffix = `agent-${each.runId.slice(0, 8)}`;
    const { b, [`b.${suffix}`]: besides, ...others } = await contents(folder);
    const { b: theirs, ...expected } = await contents(each.pod);
    expect([b, besides, others]).toEqual(["644 ours", theirs, expected]);
  });

  test("many small files take few requests, and large ones several", async () => {
    const folder = temporary();
    const each = new Case({ ...service, url: proxy.url }, folder);
    await each.out();
    const large = Buffer.alloc(12 * 1024 * 1024);
    for (let at = 0; at < large.length; at += 1024) large.writeUInt32LE(at, at);
    writeFileSync(join(each.pod, "large"), large);
    for (let n = 0; n < 1000; n++) writeFileSync(join(each.pod, `${n}`), `${n}`);
    await each.end();
    const begun = seen;
    proxy.largest = 0;
    await each.back();
    expect(await contents(folder)).toEqual(await contents(each.pod));
    expect(seen - begun).toBeLessThan(12);
    expect(proxy.largest).toBeLessThan(4.1 * 1024 * 1024);
  });

  test("without an end the last checkpoint is taken, and with nothing but what went out there is nothing to do", async () => {
    const { folder, run: each } = await run({ a: "1" });
    await each.back();
    put(each.pod, "a", "2");
    await each.end("checkpoint");
    put(each.pod, "a", "3");
    await each.end("checkpoint");
    await each.back();
    expect(await contents(folder)).toEqual({ a: "644 3" });
  });

  test("the checkpoint of a later attempt counts more than the end of an earlier one", async () => {
    const { folder, run: each } = await run({ a: "1" });
    put(each.pod, "a", "2");
    await each.end();
    put(each.pod, "a", "3");
    await each.end("checkpoint", 2);
    await each.back();
    expect(await contents(folder)).toEqual({ a: "644 3" });
  });

  test("a folder that has vanished is a failure that names it, and nothing is made", async () => {
    const { folder, run: each } = await run({ a: "1" });
    put(each.pod, "a", "2");
    await each.end();
    await rename(folder, `${folder}-moved`);
    await expect(each.back()).rejects.toThrow(`names "${folder}", which is no folder`);
    expect(existsSync(folder)).toBe(false);
    await rename(`${folder}-moved`, folder);
    await each.back();
    expect(await contents(folder)).toEqual({ a: "644 2" });
  });

  test("a folder by a link is the folder that it leads to", async () => {
    const folder = folderOf({ a: "1" });
    const link = join(temporary(), "link");
    symlinkSync(folder, link);
    const each = new Case(service, link);
    await each.out();
    put(each.pod, "a", "2");
    await each.end();
    await each.back();
    expect(await contents(folder)).toEqual({ a: "644 2" });
  });

  test("hostile configuration of Git does not come back", async () => {
    const { folder, run: each } = await run({ a: "1" });
    for (const name of [".git/config", "b/.GIT/hooks/post-checkout"]) put(each.pod, name, "[core]\nfsmonitor = evil\n");
    await each.end();
    await each.back().catch(() => undefined);
    expect(existsSync(join(folder, ".git"))).toBe(false);
    expect(existsSync(join(folder, "b", ".GIT"))).toBe(false);
  });
});
