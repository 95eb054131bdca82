/**
 * Selects the skills of a run from those that Paperclip offers, and reads them.
 *
 * Same rules as `agent_runs/paperclip/skills.py`. A skill is a folder with a SKILL.md on Paperclip's host. Paperclip's own
 * operational skill is always selected: without it an agent does not know how to report. Source: Paperclip 2026.916.1, adapter-utils and the bundled adapters.
 */
import { stat } from "node:fs/promises";
import { join } from "node:path";
import type { RuntimeSkill, SkillSync } from "./contracts.ts";
import { strip } from "./request/python.ts";
import { readText, UnreadableFile } from "./safe-files.ts";

/** Paperclip's own skill, which every agent gets. */
export const OPERATIONAL = "paperclipai/paperclip/paperclip";

/** Bytes of one skill; all of them and the prompt share a Secret of 1 MiB. */
export const SKILL_LIMIT = 256 * 1024;

/** The skills to read, in Paperclip's order, and warnings for people. */
export interface Selection {
  readonly skills: RuntimeSkill[];
  readonly warnings: string[];
}

/** The skills of one run: required and desired ones that are available. */
export function selectSkills(offered: readonly RuntimeSkill[], sync: SkillSync): Selection {
  const keys = wantedKeys(offered, sync);
  const chosen = offered.filter((skill) => keys.has(skill.key));
  const known = new Set(offered.map((skill) => skill.key));
  const unknown = [...keys].filter((key) => !known.has(key)).sort();
  return {
    skills: chosen.filter(isAvailable),
    warnings: [...chosen.filter((skill) => !isAvailable(skill)).map(leftOut), ...unknown.map(notOffered)],
  };
}

/** The part of what Paperclip offers that `selectSkills` needs: hundreds of skills are too many for a history. */
export function narrowSkills(
  offered: readonly RuntimeSkill[],
  sync: SkillSync,
): { skills: RuntimeSkill[]; sync: { desiredSkills: { key: string }[] } } {
  const keys = wantedKeys(offered, sync);
  return {
    skills: offered.filter((skill) => keys.has(skill.key)),
    sync: { desiredSkills: desiredKeys(offered, sync).map((key) => ({ key })) },
  };
}

/** Keys of the skills that every agent gets. */
export function requiredKeys(offered: readonly RuntimeSkill[]): string[] {
  return offered.filter((skill) => skill.required || skill.key === OPERATIONAL).map((skill) => skill.key);
}

/** Keys of the skills that the agent asks for; a name of no skill is its own key. */
export function desiredKeys(offered: readonly RuntimeSkill[], sync: SkillSync): string[] {
  const names = (sync.desiredSkills ?? []).map((skill) => strip(skill.key).toLowerCase());
  return [...new Set(names.filter((name) => name !== "").map((name) => resolveKey(name, offered)))];
}

/** Whether Paperclip has the skill's folder. */
export function isAvailable(skill: RuntimeSkill): boolean {
  return Boolean(skill.source) && (skill.sourceStatus ?? "available") === "available";
}

/** The part after the last slash: a key's slug. */
export function lastSegment(key: string): string {
  return key.slice(key.lastIndexOf("/") + 1);
}

/** The warning about a desired skill that Paperclip does not offer. */
export function notOffered(key: string): string {
  return `Desired skill "${key}" is not available from the Paperclip skills directory.`;
}

/**
 * The trimmed text of each skill that can be read, and a note about each that cannot.
 *
 * A skill is SKILL.md in the folder `source`, else `source` itself as a file.
 */
export async function readSkills(
  skills: readonly RuntimeSkill[],
  rootOf: (path: string) => string,
): Promise<{ texts: string[]; notes: string[] }> {
  const read = await Promise.all(skills.map((skill) => skillText(skill.source ?? "", rootOf)));
  return {
    texts: read.flatMap((found) => ("text" in found ? [found.text] : [])),
    notes: read.flatMap((found) => ("note" in found ? [found.note] : [])),
  };
}

async function skillText(
  source: string,
  rootOf: (path: string) => string,
): Promise<{ text: string } | { note: string }> {
  const path = (await isFolder(source)) ? join(source, "SKILL.md") : source;
  try {
    return { text: (await readText(path, { root: rootOf(path), limit: SKILL_LIMIT })).trim() };
  } catch (error) {
    if (error instanceof UnreadableFile) return { note: `skill not readable: ${error.message}` };
    throw error;
  }
}

async function isFolder(path: string): Promise<boolean> {
  return stat(path).then(
    (found) => found.isDirectory(),
    () => false,
  );
}

function wantedKeys(offered: readonly RuntimeSkill[], sync: SkillSync): Set<string> {
  return new Set([...requiredKeys(offered), ...desiredKeys(offered, sync)]);
}

/** The key that `name` means: exact, else a unique runtime name, else a unique last segment; else itself. */
function resolveKey(name: string, offered: readonly RuntimeSkill[]): string {
  const readings = [
    (skill: RuntimeSkill) => skill.key,
    (skill: RuntimeSkill) => skill.runtimeName ?? "",
    (skill: RuntimeSkill) => lastSegment(skill.key),
  ];
  const found = readings.map((reads) => offered.filter((skill) => reads(skill).toLowerCase() === name));
  return found.find((skills) => skills.length === 1)?.[0]?.key ?? name;
}

function leftOut(skill: RuntimeSkill): string {
  return `Skill "${skill.key}" is left out: ${skill.missingDetail || "Paperclip reports that its source is missing"}.`;
}
