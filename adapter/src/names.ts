/**
 * The names of a run's agent and task, for the memo and the summary of its workflow. They are texts of others, and
 * Temporal's Web UI renders a summary as Markdown. `agent_runs/client/names.py` has the same rules.
 */

import { type AdapterExecutionContext, objectOf } from "./paperclip.ts";

/** Characters of a name. */
const NAME_LIMIT = 100;
/** What a terminal acts on, what nobody sees, and what Markdown takes for its own. */
const LEFT_OUT = /[\p{C}\p{Z}\\`*_[\]<>~#|&]+/gu;

export interface Names {
  agent?: string;
  /** Identifier and title, such as `ACM-7 A long task`. */
  task?: string;
}

/** The names in Paperclip's execution context; undefined where there are none. */
export function namesIn({ agent, context }: Pick<AdapterExecutionContext, "agent" | "context">): Names {
  const issues = [objectOf(context).paperclipIssue, objectOf(objectOf(context).paperclipWake).issue].map(objectOf);
  const { identifier, title } = issues.find((issue) => Object.keys(issue).length > 0) ?? {};
  const task = [identifier, title].filter((text) => typeof text === "string").join(" ");
  return { agent: plain(agent?.name) || undefined, task: plain(task) || undefined };
}

export function memoOf({ agent, task }: Names): Record<string, string> {
  return { ...(agent && { agent_name: agent }), ...(task && { task_name: task }) };
}

/** Agent and task, by their ids where they have no names. */
export function titleOf({ agent, task }: Names, agentId: string, taskId: string | null | undefined): string {
  return [agent ?? plain(agentId), task ?? plain(taskId)].filter(Boolean).join(" · ");
}

/** One line of at most `NAME_LIMIT` characters, which is the same as plain text and as Markdown. */
export function plain(text: unknown): string {
  if (typeof text !== "string") return "";
  const beginning = [...text.slice(0, 8 * NAME_LIMIT)].slice(0, 4 * NAME_LIMIT).join("");
  const line = beginning
    .replace(LEFT_OUT, " ")
    .trim()
    .replace(/^[-+ ]+/, "");
  return [...line].slice(0, NAME_LIMIT).join("").trim();
}
