/**
 * The skills of an agent, as Paperclip's skills page shows them. They go into each prompt; nothing is installed.
 *
 * Source of the form: `@paperclipai/adapter-utils` 2026.916.1.
 */

import type { JsonObject } from "./paperclip.ts";
import { type PaperclipHelpers, paperclipHelpers } from "./paperclip-helpers.ts";
import { isAvailable, isRequired, offeredSkills, type RuntimeSkill, wantedKeys } from "./skills.ts";

interface SkillContext {
  adapterType: string;
  config: JsonObject;
}

/** Every skill that Paperclip offers or the agent desires, sorted by key. */
export async function listSkills(context: SkillContext) {
  return snapshot(context, await paperclipHelpers());
}

/** The snapshot, with Paperclip's rule of which skills an agent desires; without it only the required ones are. */
export function snapshot({ adapterType, config }: SkillContext, helpers: PaperclipHelpers) {
  const offered = offeredSkills(config);
  const known = new Set(offered.map(({ key }) => key));
  const desired = wantedKeys(config, helpers) ?? new Set(offered.filter(isRequired).map(({ key }) => key));
  const unknown = [...desired].filter((key) => !known.has(key)).sort();
  const entries = [...offered.map((skill) => managed(skill, desired.has(skill.key))), ...unknown.map(absent)];
  return {
    ...{ adapterType, supported: true, mode: "ephemeral", desiredSkills: [...desired].sort() },
    entries: entries.sort((one, other) => (one.key < other.key ? -1 : 1)),
    warnings: unknown.map((key) => `Desired skill "${key}" is not available from the Paperclip skills directory.`),
  };
}

function managed(skill: RuntimeSkill, desired: boolean) {
  const required = isRequired(skill);
  return {
    ...{ key: skill.key, desired, required, managed: true, readOnly: false },
    runtimeName: skill.runtimeName ?? skill.key.slice(skill.key.lastIndexOf("/") + 1),
    state: isAvailable(skill) ? (desired ? "configured" : "available") : "missing",
    requiredReason: required ? "Paperclip requires it for every agent." : null,
    origin: required ? "paperclip_required" : "company_managed",
    originLabel: required ? "Required by Paperclip" : "Managed by Paperclip",
    sourcePath: skill.source ?? null,
    detail: skill.missingDetail || (desired ? "Goes into the prompt of each Kubernetes Job." : null),
  };
}

function absent(key: string) {
  return {
    ...{ key, runtimeName: null, desired: true, managed: true, readOnly: false, state: "missing", sourcePath: null },
    ...{ origin: "external_unknown", originLabel: "External or unavailable" },
    detail: "Paperclip offers no skill of this name.",
  };
}
