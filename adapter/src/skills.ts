/**
 * Reads the skills of a run, and shows those of an agent. A skill is a folder with a SKILL.md on Paperclip's host; Paperclip
 * says which ones an agent desires, and the worker makes the selection. Source: Paperclip 2026.916.1, adapter-utils.
 */

import { opendir, stat } from "node:fs/promises";
import { dirname, join, relative } from "node:path";
import type { JsonObject } from "./paperclip.ts";
import { type PaperclipHelpers, paperclipHelpers } from "./paperclip-helpers.ts";
import { type Reader, real, UnreadableFile } from "./safe-files.ts";

interface RuntimeSkill {
  key: string;
  /** Its folder on Paperclip's host. */
  source?: string | null;
  sourceStatus?: string | null;
  required?: boolean;
}

/** Paperclip's own skill: without it an agent does not know how to report. */
export const OPERATIONAL = "paperclipai/paperclip/paperclip";
/** Bytes of one skill; all of them and the prompt share a Secret of 1 MiB. */
const SKILL_LIMIT = 256 * 1024;
const TOTAL_LIMIT = 2 * 1024 * 1024;
const FILES_LIMIT = 100;

/** Paperclip's skills page of an agent. A skill goes to the agent, as a folder or in the prompt; nothing is installed. */
export async function listSkills(agent: { adapterType: string; config: JsonObject }): Promise<JsonObject> {
  return skillsPage(agent, await paperclipHelpers());
}

/** The page as Paperclip's own helper makes it; without the helper the page says that it shows nothing. */
export function skillsPage(
  { adapterType, config }: { adapterType: string; config: JsonObject },
  helpers: PaperclipHelpers,
): JsonObject {
  const desiredSkills = [...(wantedKeys(config, helpers) ?? [])];
  const configuredDetail = "Goes to the agent in each Kubernetes Job.";
  const skills = { availableEntries: offeredSkills(config), desiredSkills, configuredDetail };
  const page = helpers.buildRuntimeMountedSkillSnapshot?.({ adapterType, mode: "ephemeral", ...skills });
  const unsupported = { adapterType, supported: false, mode: "unsupported", desiredSkills, entries: [], warnings: [] };
  return page ?? unsupported;
}

function offeredSkills(config: JsonObject): RuntimeSkill[] {
  const listed = Array.isArray(config.paperclipRuntimeSkills) ? config.paperclipRuntimeSkills : [];
  return listed.filter((skill): skill is RuntimeSkill => typeof skill?.key === "string");
}

/** Keys of the skills that an agent desires or must have; undefined when Paperclip does not say which it desires. */
function wantedKeys(config: JsonObject, helpers: PaperclipHelpers): Set<string> | undefined {
  const offered = offeredSkills(config);
  try {
    const desired = helpers.resolvePaperclipDesiredSkillNames?.(config, offered);
    return desired && new Set([...offered.filter(isRequired).map(({ key }) => key), ...desired]);
  } catch {
    return undefined;
  }
}

function isRequired(skill: RuntimeSkill): boolean {
  return skill.required === true || skill.key === OPERATIONAL;
}

function isAvailable(skill: RuntimeSkill): skill is RuntimeSkill & { source: string } {
  const { source, sourceStatus } = skill;
  return typeof source === "string" && source !== "" && (sourceStatus ?? "available") === "available";
}

/**
 * The trimmed texts of the wanted skills by key, and of those that come with Paperclip the files beside them, by their paths:
 * no agent's pod has their folders. `notes` gets one about each that cannot be read. When Paperclip does not say which are
 * wanted, all are read, the required ones first.
 */
export async function skillsOf(
  config: JsonObject,
  helpers: PaperclipHelpers,
  read: Reader,
  notes: string[],
): Promise<{ skills: Record<string, string>; skillFiles: Record<string, Record<string, string>> }> {
  const bundled = new Set(await Promise.all((helpers.bundledSkills ?? []).map(real)));
  const wanted = wantedKeys(config, helpers);
  const chosen = offeredSkills(config)
    .filter(isAvailable)
    .filter(({ key }) => wanted?.has(key) ?? true);
  const texts = new Map<string, string>();
  const folders = new Map<string, Record<string, string>>();
  let bytes = 0;
  for (const { key, source } of chosen.sort((one, other) => Number(isRequired(other)) - Number(isRequired(one)))) {
    /** Of a file that cannot be read, a note that begins so. */
    const noted = (beginning: string) => (error: unknown) => {
      if (!(error instanceof UnreadableFile)) throw error;
      notes.push(`${beginning}: ${error.message}`);
    };
    const text = await skillText(source, read).catch(noted("skill not readable"));
    if (text === undefined) continue;
    const inPrompt = `skill "${key}" is in the prompt, not a folder`;
    const files = bundled.has(await real(dirname(source)))
      ? await filesBeside(source, read).catch(noted(inPrompt))
      : undefined;
    bytes += [text, ...Object.values(files ?? {})].reduce((sum, each) => sum + Buffer.byteLength(each), 0);
    if (texts.size === FILES_LIMIT || bytes > TOTAL_LIMIT) {
      notes.push(`skills from "${key}" on are left out: the limit is ${FILES_LIMIT} files and 2 MiB in all`);
      break;
    }
    texts.set(key, text);
    if (files !== undefined) folders.set(key, files);
  }
  return { skills: Object.fromEntries(texts), skillFiles: Object.fromEntries(folders) };
}

/** The texts of all files in the folder of a skill but SKILL.md, by their paths in it, without links. */
async function filesBeside(source: string, read: Reader): Promise<Record<string, string>> {
  const paths: string[] = [];
  try {
    for await (const entry of await opendir(source, { recursive: true })) {
      paths.push(...(entry.isFile() ? [relative(source, join(entry.parentPath, entry.name))] : []));
      if (paths.length > FILES_LIMIT) break;
    }
  } catch (error) {
    throw new UnreadableFile(`${source}: ${(error as NodeJS.ErrnoException).code}`);
  }
  if (paths.length > FILES_LIMIT) throw new UnreadableFile(`${source}: more than ${FILES_LIMIT} files`);
  const beside = paths.filter((path) => path !== "SKILL.md");
  return Object.fromEntries(
    await Promise.all(beside.map(async (path) => [path, await read(join(source, path), SKILL_LIMIT)] as const)),
  );
}

/** A skill is SKILL.md in the folder `source`, else `source` itself as a file. */
async function skillText(source: string, read: Reader): Promise<string> {
  const found = await stat(source).catch(() => undefined);
  const path = found?.isDirectory() ? join(source, "SKILL.md") : source;
  return (await read(path, SKILL_LIMIT)).trim();
}
