/**
 * The comment that a failed run leaves on its task: what happened, what to do, and where to look.
 *
 * Paperclip makes a run's summary a comment when it stores the result, once, unless a comment of that run is there
 * already. So the summary of a failed run is this text; if the agent has commented, the plugin adds the comment itself. A
 * later wake that joins the ended run, after a restart of Paperclip, finds the run's name in it and leaves none. Source:
 * Paperclip 2026.916.1, read and observed.
 */

import { type AdapterExecutionContext, objectOf } from "./paperclip.ts";
import { PaperclipApi } from "./paperclip-api.ts";

const BEGINNING = "**The run failed:";
const TEXT_LIMIT = 1500;
/** Comments that are read, the newest first. */
const COMMENTS_READ = 50;

export interface FailedRun {
  /** Paperclip's id of the wake that started it. */
  runId: string;
  code: string;
  message: string;
  nextStep?: string;
  /** Link to the run's page. */
  page?: string;
}

/** The summary with which the failure is on the task once; empty if it is there already. Never rejects. */
export async function failureComment(
  run: FailedRun,
  { context, runId, authToken }: AdapterExecutionContext,
): Promise<string> {
  const text = commentOf(run);
  const { issueId } = objectOf(context);
  if (typeof issueId !== "string") return text;
  const api = new PaperclipApi(authToken);
  const path = `/issues/${encodeURIComponent(issueId)}/comments`;
  const { body } = await api.request(`${path}?limit=${COMMENTS_READ}`);
  const comments = (Array.isArray(body.list) ? body.list : []).map(objectOf);
  if (comments.some(({ body }) => `${body}`.startsWith(BEGINNING) && `${body}`.includes(markOf(run)))) return "";
  if (comments.some((comment) => comment.createdByRunId === runId)) await api.request(path, { body: text });
  return text;
}

function commentOf(run: FailedRun): string {
  const { code, message, nextStep, page } = run;
  const said = page ? `[${markOf(run)}](${page})` : markOf(run);
  return [
    `${BEGINNING} \`${code}\`.** ${plain(message)}`,
    ...(nextStep ? [`**Next step:** ${plain(nextStep)}`] : []),
    `${said}${page ? " has what the agent did." : ""}`,
  ].join("\n\n");
}

function markOf({ runId }: FailedRun): string {
  return `Run ${runId}`;
}

/** Text that Markdown shows as it is, and that mentions nobody: an error may quote what an agent wrote. */
function plain(text: string): string {
  const short = text.length > TEXT_LIMIT ? `${text.slice(0, TEXT_LIMIT - 1)}…` : text;
  return short
    .replace(/\p{Cs}/gu, "\ufffd")
    .replace(/[\\`*_{}[\]<>#|~]/g, "\\$&")
    .replace(/@/g, "@\u200b")
    .replace(/\s+/g, " ")
    .trim();
}
