/** What people call a run: the names of its agent and its task, as `agent_runs/client/names.py` writes them, too. */

import type { RunStart } from "../generated/contracts.ts";
import { type AdapterExecutionContext, objectOf } from "./paperclip.ts";

const MAX_NAME = 100;
/** In UTF-8; Temporal refuses a summary of more than 400 bytes of JSON, where a quotation mark has two. */
const SUMMARY_BYTES = 180;
const INVISIBLE =
  // biome-ignore lint/suspicious/noMisleadingCharacterClass: each is a character of its own here
  /[\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]/gu;
// biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what is replaced
const BLANK = /[\x00-\x20\x7f-\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+/g;

/** The values of the memo; a name that is not known is absent. */
export interface RunNames {
  agentName?: string;
  /** Paperclip's identifier of the task, and its title. */
  taskName?: string;
}

export function namesOf({ agent, context }: Pick<AdapterExecutionContext, "agent" | "context">): RunNames {
  const { paperclipIssue, paperclipWake } = objectOf(context);
  const issues = [paperclipIssue, objectOf(paperclipWake).issue].map(objectOf);
  const tasks = issues.map(({ identifier, title }) => line(`${line(identifier)} ${line(title)}`));
  const names = { agentName: line(agent.name), taskName: tasks.find((name) => name !== "") };
  return Object.fromEntries(Object.entries(names).filter(([, name]) => name));
}

/** Markdown for Temporal's Web UI, which shows it as it is; with ids for names that the run does not have. */
export function summaryOf({ agentName, taskName }: RunNames, { agentId, task }: RunStart): string {
  const title = [agentName ?? agentId, taskName ?? line(task)].filter((name) => name !== "").join(" · ");
  return `\`${cut(title, SUMMARY_BYTES)}\``;
}

/** The text's whole characters within so many bytes of UTF-8. */
export function cut(text: string, limit: number): string {
  const bytes = Buffer.from(text);
  let end = Math.min(bytes.length, limit);
  while (end < bytes.length && ((bytes[end] ?? 0) & 0xc0) === 0x80) end--;
  return bytes.subarray(0, end).toString();
}

/** A text of people in one line, without what nobody sees; a backquote would end Markdown's code. */
function line(text: unknown): string {
  if (typeof text !== "string") return "";
  const visible = text.replace(INVISIBLE, "").replace(BLANK, " ").replace(/^ | $/g, "").replaceAll("`", "'");
  const characters = Array.from(visible);
  if (characters.length <= MAX_NAME) return visible;
  return `${characters
    .slice(0, MAX_NAME - 1)
    .join("")
    .replace(/ $/, "")}…`;
}
