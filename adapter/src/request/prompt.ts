/**
 * The prompt as the worker will compose it, which Paperclip shows for an invocation. Same rules as
 * `agent_runs/paperclip/prompt.py`.
 *
 * Sections: instructions, skills, bootstrap, wake, task, session handoff, heartbeat; each trimmed, empty ones dropped,
 * joined by one blank line. Source: Paperclip's adapter-utils 2026.916.1 and the existing adapters' tests.
 */
import type { PromptSource } from "../contracts.ts";
import { isObject, own, wellFormed } from "./plain.ts";

/** The heartbeat sentence of an agent without a template of its own. */
const HEARTBEAT = "You are agent {{agent.id}} ({{agent.name}}). Continue your Paperclip work.";
const SKILL_SEPARATOR = "\n\n---\n\n";
const PLACEHOLDER = /\{\{\s*([A-Za-z0-9_.-]+)\s*\}\}/g;

/** The prompt, and the UTF-16 length of each section under Paperclip's names. */
export interface Prompt {
  readonly text: string;
  readonly metrics: Record<string, number>;
}

/** Who runs, and where its instructions come from. */
export interface Run {
  readonly runId: string;
  readonly agentId: string;
  readonly companyId: string;
  readonly instructionsPath?: string;
}

/**
 * The prompt of one attempt.
 *
 * A resumed session has its bootstrap already. When the wake has prose for it, the heartbeat is left out too.
 */
export function composed(source: PromptSource, run: Run, resuming: boolean): Prompt {
  const facts = templateFacts(source, run);
  const wake = (resuming ? source.wake?.resumed : source.wake?.fresh) ?? "";
  const sections = {
    instructionsChars: instructions(source.instructions ?? "", run.instructionsPath ?? ""),
    skillsBundleChars: joined(source.skills ?? [], SKILL_SEPARATOR),
    bootstrapPromptChars: resuming ? "" : rendered(source.bootstrapTemplate ?? "", facts),
    wakePromptChars: wake,
    taskMarkdownChars: source.taskMarkdown ?? "",
    sessionHandoffChars: source.sessionHandoff ?? "",
    heartbeatPromptChars: resuming && wake.trim() ? "" : rendered(source.promptTemplate || HEARTBEAT, facts),
  };
  const trimmed = Object.entries(sections).map(([name, section]) => [name, wellFormed(section).trim()] as const);
  const text = joined(
    trimmed.map(([, section]) => section),
    "\n\n",
  );
  const lengths = trimmed.map(([name, section]) => [name, section.length] as const);
  return { text, metrics: { promptChars: text.length, ...Object.fromEntries(lengths) } };
}

function templateFacts(source: PromptSource, { runId, agentId, companyId }: Run): Record<string, unknown> {
  const prose = Object.entries({
    paperclipTaskMarkdown: source.taskMarkdown,
    paperclipSessionHandoffMarkdown: source.sessionHandoff,
  }).filter(([, text]) => text);
  return {
    agentId,
    companyId,
    runId,
    company: { id: companyId },
    agent: { ...source.agent, id: agentId, companyId },
    run: { id: runId, source: "on_demand" },
    context: { ...source.context, ...Object.fromEntries(prose) },
  };
}

function joined(sections: readonly string[], separator: string): string {
  return sections
    .map((section) => section.trim())
    .filter((section) => section !== "")
    .join(separator);
}

function instructions(text: string, path: string): string {
  const kept = text.trim();
  if (kept === "") return "";
  const folder = path.slice(0, Math.max(path.lastIndexOf("/"), 0)) || "/";
  return `${kept}\n\n(These instructions were read from ${path}; relative paths in them start at ${folder}.)`;
}

function rendered(template: string, facts: Record<string, unknown>): string {
  return template.replace(PLACEHOLDER, (_, path: string) => asText(found(facts, path)));
}

function found(facts: Record<string, unknown>, path: string): unknown {
  let place: unknown = facts;
  for (const step of path.split(".")) place = isObject(place) ? own(place, step) : undefined;
  return place;
}

function asText(value: unknown): string {
  if (value === undefined || value === null) return "";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
