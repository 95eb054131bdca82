/** The skills of an agent, as Paperclip's skills page shows them. */

import type { RuntimeSkill, SkillSync } from "./contracts.ts";
import type { JsonObject, SkillContext, SkillEntry, SkillSnapshot } from "./paperclip.ts";
import { desiredKeys, isAvailable, lastSegment, notOffered, requiredKeys } from "./skills.ts";

/** Every known skill and its state, sorted by key. Skills go into the prompt of each run; nothing is installed. */
export async function listSkills(context: SkillContext): Promise<SkillSnapshot> {
  return { ...snapshot(offeredIn(context.config), syncIn(context.config)), adapterType: context.adapterType };
}

/** The snapshot, from the skills that Paperclip offers and those that the agent desires. */
export function snapshot(offered: readonly RuntimeSkill[], sync: SkillSync): SkillSnapshot {
  const required = new Set(requiredKeys(offered));
  const desired = new Set([...required, ...desiredKeys(offered, sync)]);
  const known = new Set(offered.map((skill) => skill.key));
  const unknown = [...desired].filter((key) => !known.has(key)).sort();
  const entries = [
    ...offered.map((skill) => managed(skill, desired.has(skill.key), required.has(skill.key))),
    ...unknown.map(absent),
  ];
  return {
    adapterType: "opencode_k8s",
    supported: true,
    mode: "ephemeral",
    desiredSkills: [...desired].sort(),
    entries: entries.sort((one, other) => (one.key < other.key ? -1 : 1)),
    warnings: unknown.map(notOffered),
  };
}

function offeredIn(config: JsonObject): RuntimeSkill[] {
  const listed = Array.isArray(config.paperclipRuntimeSkills) ? config.paperclipRuntimeSkills : [];
  return listed.filter((skill): skill is RuntimeSkill => typeof skill?.key === "string");
}

function syncIn(config: JsonObject): SkillSync {
  const sync = config.paperclipSkillSync as { desiredSkills?: unknown } | null | undefined;
  const desired = Array.isArray(sync?.desiredSkills) ? sync.desiredSkills : [];
  const keys = desired.map((skill) => (typeof skill === "string" ? skill : skill?.key));
  return { desiredSkills: keys.filter((key): key is string => typeof key === "string").map((key) => ({ key })) };
}

function managed(skill: RuntimeSkill, desired: boolean, required: boolean): SkillEntry {
  return {
    key: skill.key,
    runtimeName: skill.runtimeName ?? lastSegment(skill.key),
    desired,
    managed: true,
    state: isAvailable(skill) ? (desired ? "configured" : "available") : "missing",
    required,
    requiredReason: required ? "Paperclip's own skill: the agent needs it to report." : null,
    origin: required ? "paperclip_required" : "company_managed",
    originLabel: required ? "Required by Paperclip" : "Managed by Paperclip",
    readOnly: false,
    sourcePath: skill.source ?? null,
    targetPath: null,
    detail: skill.missingDetail || (desired ? "Goes into the prompt of each Kubernetes Job." : null),
  };
}

function absent(key: string): SkillEntry {
  return {
    key,
    runtimeName: null,
    desired: true,
    managed: true,
    state: "missing",
    origin: "external_unknown",
    originLabel: "External or notOffered",
    readOnly: false,
    sourcePath: null,
    targetPath: null,
    detail: "Paperclip offers no skill of this name.",
  };
}
