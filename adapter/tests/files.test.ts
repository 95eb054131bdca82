/** What an agent's configuration can have read from Paperclip's host: its own instructions and its company's skills. */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { link, mkdir, mkdtemp, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { beforeEach, describe, expect, test } from "vitest";
import type { AdapterExecutionContext } from "../src/paperclip.ts";
import type { PaperclipHelpers } from "../src/paperclip-helpers.ts";
import { prepare } from "../src/request.ts";
import { settingsFrom } from "../src/settings.ts";
import { opened, sealer } from "./support/sealed.ts";
import { PYTHON } from "./support/stack.ts";

const CANARY = "canary-77c1";
const EXCHANGE = join(import.meta.dirname, "exchange.py");

let home: string;
let instance: string;
let own: string;

beforeEach(async () => {
  home = await mkdtemp(join(tmpdir(), "paperclip-"));
  instance = join(home, "instances", "default");
  own = await file(join(instance, "companies", "acme", "agents", "ada", "instructions", "AGENTS.md"), "Be kind.");
});

/** A file with its folders. */
async function file(path: string, text: string): Promise<string> {
  await mkdir(dirname(path), { recursive: true });
  await writeFile(path, text);
  return path;
}

/** What is sealed for a wake of agent Ada of the company Acme with this configuration. */
async function texts(
  config: object,
  settings: NodeJS.ProcessEnv = {},
  env: NodeJS.ProcessEnv = {},
  helpers: PaperclipHelpers = {},
  agent = { id: "ada", companyId: "acme", name: "Ada" },
) {
  const ctx = { runId: "run-1", agent, config } as unknown as AdapterExecutionContext;
  const environment = { PAPERCLIP_HOME: home, ...env };
  const { wake } = await prepare(ctx, settingsFrom(settings), await sealer(), helpers, environment);
  return (await opened(wake.start.sealed)).content.host;
}

const instructions = (path: string, ...more: NodeJS.ProcessEnv[]) => texts({ instructionsFilePath: path }, ...more);
const skill = (source: string, ...more: NodeJS.ProcessEnv[]) =>
  texts({ paperclipRuntimeSkills: [{ key: "acme/skill", source }] }, ...more);

/** Nothing was read; one note names the field, the path and this reason. */
async function expectRefusal(path: string, reason: string, ...more: NodeJS.ProcessEnv[]): Promise<void> {
  const [asInstructions, asSkill] = [await instructions(path, ...more), await skill(path, ...more)];
  expect(asInstructions).toMatchObject({ instructions: "", skills: {} });
  expect(asInstructions.notes).toEqual([`instructionsFilePath not readable: ${path}: ${reason}`]);
  expect(asSkill.skills).toEqual({});
  expect(asSkill.notes).toEqual([`skill not readable: ${path}: ${reason}`]);
}

const OUTSIDE = "leads out of this agent's own folders and AGENT_RUNS_READABLE_FOLDERS";
const ANOTHER = "leads into another agent's folder";
const KEYS = "leads to keys or logins";

describe("by default, no text of a run comes from", () => {
  test("Paperclip's master key", async () => {
    await expectRefusal(await file(join(instance, "secrets", "master.key"), CANARY), OUTSIDE);
  });

  test("the plugin's sealing key", async () => {
    const key = await file(join(await mkdtemp(join(tmpdir(), "keys-")), "sealing-key.json"), CANARY);
    await expectRefusal(key, OUTSIDE, { AGENT_RUNS_SEALING_KEY_FILE: key });
  });

  test.each(["companies/acme/agents/bob/instructions/AGENTS.md", "companies/other/agents/ada/instructions/AGENTS.md"])(
    "another agent's instructions: %s",
    async (path) => await expectRefusal(await file(join(instance, path), CANARY), OUTSIDE),
  );

  test.each([".env", "config.json", "skills/other/one.md", "workspaces/bob/AGENTS.md"])(
    "another file of Paperclip's home: %s",
    async (path) => await expectRefusal(await file(join(instance, path), CANARY), OUTSIDE),
  );

  test("what a link in the agent's own folder leads to", async () => {
    const secret = await file(join(instance, "secrets", "master.key"), CANARY);
    const planted = join(dirname(own), "PLANTED.md");
    await symlink(secret, planted);
    await expectRefusal(planted, OUTSIDE);
  });

  test("what the agent's own folder leads to, once it is a link", async () => {
    const another = await file(
      join(instance, "companies", "acme", "agents", "bob", "instructions", "AGENTS.md"),
      CANARY,
    );
    await mkdir(join(instance, "companies", "acme", "agents", "eve"));
    const eve = { id: "eve", companyId: "acme", name: "Eve" };
    const folder = join(instance, "companies", "acme", "agents", "eve", "instructions");
    await symlink(dirname(another), folder);
    const config = { instructionsFilePath: join(folder, "AGENTS.md") };
    const notes = [expect.stringContaining(OUTSIDE)];
    expect(await texts(config, {}, {}, {}, eve)).toMatchObject({ instructions: "", notes });
  });

  test("a file that has a hard link in the agent's own folder", async () => {
    const planted = join(dirname(own), "PLANTED.md");
    await link(await file(join(instance, "secrets", "master.key"), CANARY), planted);
    expect(await instructions(planted)).toMatchObject({ instructions: "", notes: [expect.stringContaining(planted)] });
  });
});

test.runIf(process.platform === "linux")(
  "a folder that is exchanged while it is read never leads out of it",
  async () => {
    const outside = await mkdtemp(join(tmpdir(), "outside-"));
    await file(join(outside, "AGENTS.md"), CANARY);
    const trap = join(home, "trap");
    await symlink(outside, trap);
    const attacker = spawn(PYTHON, [EXCHANGE, dirname(own), trap], { stdio: ["pipe", "pipe", "inherit"] });
    const counts = { own: 0, refused: 0, leaked: 0 };
    try {
      await once(attacker.stdout as NonNullable<ChildProcess["stdout"]>, "data");
      for (const end = Date.now() + 3000; Date.now() < end; ) {
        const read = await instructions(own);
        if (JSON.stringify(read).includes(CANARY)) counts.leaked += 1;
        else counts[read.instructions === "Be kind." ? "own" : "refused"] += 1;
      }
    } finally {
      attacker.stdin?.end();
    }
    expect(counts).toEqual({ own: expect.any(Number), refused: expect.any(Number), leaked: 0 });
    expect(Math.min(counts.own, counts.refused)).toBeGreaterThan(0);
  },
  20_000,
);

describe("what is read", () => {
  test("the agent's own instructions, also through a link within them", async () => {
    expect(await instructions(own)).toMatchObject({ instructions: "Be kind.", notes: [] });
    await symlink(own, join(dirname(own), "LINK.md"));
    expect((await instructions(join(dirname(own), "LINK.md"))).instructions).toBe("Be kind.");
  });

  test("those of another instance, where Paperclip's environment names it, and by a home that is a link", async () => {
    const linked = join(await mkdtemp(join(tmpdir(), "link-")), "home");
    await symlink(home, linked);
    const path = "companies/acme/agents/ada/instructions/AGENTS.md";
    await file(join(home, "instances", "second", path), "Second.");
    const environment = { PAPERCLIP_HOME: linked, PAPERCLIP_INSTANCE_ID: "second" };
    expect((await instructions(join(linked, "instances/second", path), {}, environment)).instructions).toBe("Second.");
    expect((await instructions(own, {}, environment)).instructions).toBe("");
  });

  test("skills of the company, and those in its projects", async () => {
    for (const folder of ["skills/acme/one", "skills/acme/__runtime__/one", "projects/acme/p/repo/skills/one"]) {
      const source = dirname(await file(join(instance, folder, "SKILL.md"), "# One"));
      expect(await skill(source)).toMatchObject({ skills: { "acme/skill": "# One" }, notes: [] });
      expect((await instructions(join(source, "SKILL.md"))).instructions).toBe("");
    }
  });

  test("skills that come with Paperclip", async () => {
    const bundled = await mkdtemp(join(tmpdir(), "bundled-"));
    const source = dirname(await file(join(bundled, "paperclip", "SKILL.md"), "# Paperclip"));
    const config = { instructionsFilePath: join(source, "SKILL.md"), paperclipRuntimeSkills: [{ key: "p", source }] };
    const read = await texts(config, {}, {}, { bundledSkills: [join(bundled, "absent"), bundled] });
    expect(read).toMatchObject({ instructions: "", skills: { p: "# Paperclip" } });
  });

  test("the folders of skills that come with Paperclip, and of no others", async () => {
    const bundled = await mkdtemp(join(tmpdir(), "bundled-"));
    const own = dirname(await file(join(bundled, "paperclip", "SKILL.md"), "# Paperclip"));
    await file(join(own, "references", "deep", "api.md"), "GET /issues\n");
    await file(join(own, "scripts", "upload.sh"), "#!/bin/sh\n");
    await symlink(await file(join(home, "secret.txt"), CANARY), join(own, "link.txt"));
    const alone = dirname(await file(join(bundled, "alone", "SKILL.md"), "# Alone"));
    const company = dirname(await file(join(instance, "skills", "acme", "one", "SKILL.md"), "# One"));
    await file(join(company, "references", "steps.md"), "Steps.");
    const offered = { own, alone, company };
    const paperclipRuntimeSkills = Object.entries(offered).map(([key, source]) => ({ key, source }));
    const read = await texts({ paperclipRuntimeSkills }, {}, {}, { bundledSkills: [bundled] });
    expect(read.notes).toEqual([]);
    expect(read.skillFiles).toEqual({
      own: { "references/deep/api.md": "GET /issues\n", "scripts/upload.sh": "#!/bin/sh\n" },
      alone: {},
    });
    expect(Object.keys(read.skills)).toEqual(["own", "alone", "company"]);
  });

  test.each([
    ["a file that is no text", Buffer.from([0xff]), 1, "not UTF-8"],
    ["a file that is too large", Buffer.alloc(256 * 1024 + 1, "x"), 1, "larger than 262144 bytes"],
    ["too many files", Buffer.from("x"), 100, "more than 100 files"],
  ])(
    "a folder of Paperclip's with %s not: its skill is in the prompt, and a note says why",
    async (_, content, count, why) => {
      const bundled = await mkdtemp(join(tmpdir(), "bundled-"));
      const source = dirname(await file(join(bundled, "paperclip", "SKILL.md"), "# Paperclip"));
      for (let n = 0; n < count; n++) await writeFile(join(source, `file-${n}`), content);
      const read = await texts(
        { paperclipRuntimeSkills: [{ key: "p", source }] },
        {},
        {},
        { bundledSkills: [bundled] },
      );
      expect(read).toMatchObject({ skills: { p: "# Paperclip" }, skillFiles: {} });
      expect(read.notes).toEqual([expect.stringMatching(`^skill "p" is in the prompt, not a folder: .*${why}$`)]);
    },
  );

  test("files of the folders that the operator lists", async () => {
    const [one, two] = [await mkdtemp(join(tmpdir(), "bundle-")), join(home, "bundles")];
    const listed = { AGENT_RUNS_READABLE_FOLDERS: `${one}/:${two}` };
    for (const folder of [one, two]) {
      const path = await file(join(folder, "AGENTS.md"), "Listed.");
      expect(await instructions(path, listed)).toMatchObject({ instructions: "Listed.", notes: [] });
      expect((await skill(path, listed)).skills).toEqual({ "acme/skill": "Listed." });
      await expectRefusal(path, OUTSIDE);
    }
  });

  test("no keys, logins or files of other agents, whatever the operator lists", async () => {
    const key = join(home, "keys", "sealing-key.json");
    const environment = { PAPERCLIP_SECRETS_MASTER_KEY_FILE: join(home, "elsewhere", "master.key") };
    const settings = { AGENT_RUNS_READABLE_FOLDERS: home, AGENT_RUNS_SEALING_KEY_FILE: key };
    const refused = async (path: string, reason: string) =>
      await expectRefusal(await file(join(home, path), CANARY), reason, settings, environment);
    await refused("keys/sealing-key.json", KEYS);
    await refused("keys/transcripts-key.json", KEYS);
    await refused("elsewhere/master.key", KEYS);
    for (const path of ["secrets/master.key", ".env", "config.json", "db/one", "data/backups/one"])
      await refused(join("instances/default", path), KEYS);
    await refused("bundles/.env.local", KEYS);
    await refused("instances/default/companies/acme/agents/bob/instructions/AGENTS.md", ANOTHER);
    await refused("instances/default/workspaces/bob/AGENTS.md", ANOTHER);
    const workspace = await file(join(instance, "workspaces", "ada", "AGENTS.md"), "Mine.");
    expect((await instructions(workspace, settings, environment)).instructions).toBe("Mine.");
  });
});
