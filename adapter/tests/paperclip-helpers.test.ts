import { mkdir, mkdtemp, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { loadHelpers } from "../src/paperclip-helpers.ts";

/** A program with Paperclip's helpers installed as npm does. */
async function installed(helpers: string): Promise<string> {
  const root = await mkdtemp(join(tmpdir(), "host-"));
  const folder = join(root, "node_modules", "@paperclipai", "adapter-utils");
  await mkdir(join(folder, "dist"), { recursive: true });
  await mkdir(join(root, "node_modules", "paperclipai", "dist"), { recursive: true });
  await mkdir(join(root, "node_modules", ".bin"), { recursive: true });
  const manifest = { name: "@paperclipai/adapter-utils", version: "2026.916.1", type: "module" };
  await writeFile(join(folder, "package.json"), JSON.stringify(manifest));
  await writeFile(join(folder, "dist", "server-utils.js"), helpers);
  const program = join(root, "node_modules", "paperclipai", "dist", "index.js");
  await writeFile(program, "");
  return program;
}

test("the helpers of the program that runs are found, also through a link in .bin", async () => {
  const program = await installed(`
    export const renderPaperclipWakePrompt = (wake, options) => wake.reason + options.resumedSession;
    export const isPaperclipRecoveryWakePayload = (wake) => wake.recovery === true;
    export const resolvePaperclipDesiredSkillNames = (config, offered) => [config.wanted, offered[0].key];
    export const DEFAULT_PAPERCLIP_AGENT_PROMPT_TEMPLATE = "You are {{agent.id}}.";
  `);
  const link = join(program, "..", "..", "..", ".bin", "paperclipai");
  await symlink(program, link);
  for (const entry of [program, link]) {
    const host = await loadHelpers(entry);
    expect(host.version).toBe("2026.916.1");
    expect(host.bundledSkills).toContain(join(program, "..", "..", "..", "@paperclipai", "server", "skills"));
    expect(host.renderPaperclipWakePrompt?.({ reason: "assigned " }, { resumedSession: true })).toBe("assigned true");
    expect(host.isPaperclipRecoveryWakePayload?.({ recovery: true })).toBe(true);
    expect(host.resolvePaperclipDesiredSkillNames?.({ wanted: "a" }, [{ key: "b" }])).toEqual(["a", "b"]);
    expect(host.DEFAULT_PAPERCLIP_AGENT_PROMPT_TEMPLATE).toBe("You are {{agent.id}}.");
    expect(host.DEFAULT_PAPERCLIP_CONVERSATION_PROMPT_TEMPLATE).toBeUndefined();
  }
});

test("an older Paperclip has fewer helpers", async () => {
  const host = await loadHelpers(await installed("export const another = 5;"));
  expect(host.renderPaperclipWakePrompt).toBeUndefined();
  expect(host).toMatchObject({ version: "2026.916.1" });
});

test.each([
  ["no program", async () => undefined],
  ["a program without helpers", async () => join(tmpdir(), "nothing", "index.js")],
  ["helpers that do not load", () => installed("throw new Error('broken');")],
  ["helpers that do not parse", () => installed("export const = ;")],
])("a program without usable helpers gives none: %s", async (_, entry) => {
  expect(await loadHelpers(await entry())).toEqual({});
});
