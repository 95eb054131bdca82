/**
 * Leaves the task of a failed run so that it waits for a person, and so that any comment wakes it again.
 *
 * Paperclip holds the task of a failed run of an external adapter: it refuses comments and retries until an operator gives
 * evidence of what the agent did. It does not hold a task whose run asks for the conversation to be continued, but then it
 * repeats the run by itself, twice, unless the task is blocked. So the task of a run that no repeat can help is blocked
 * first, with the board as the one to unblock it and the run's next step as what to do, which Paperclip shows among the
 * things that need attention. That takes board rights, as the reconciler does. Source: Paperclip 2026.916.1, read and observed.
 */

import type { Outcome } from "../generated/contracts.ts";
import { type AdapterExecutionContext, objectOf } from "./paperclip.ts";
import { isUnanswered, PaperclipApi } from "./paperclip-api.ts";

/** How often Paperclip repeats a run by itself. */
const REPEATS = 2;
/** Of 5 s for each of two requests. */
const ATTEMPTS = 4;
const WORKABLE: ReadonlySet<unknown> = new Set(["todo", "in_progress"]);

/** Whether Paperclip repeats a failed run by itself: one that may pass twice, one that never began once. */
export function isRepeated(
  { mayRepeat, neverStarted }: Pick<Outcome, "mayRepeat" | "neverStarted">,
  { context }: AdapterExecutionContext,
): boolean {
  const { scheduledRetryAttempt: repeats = 0, retryOfRunId } = objectOf(context);
  return mayRepeat ? Number(repeats) < REPEATS : neverStarted === true && retryOfRunId === undefined;
}

/**
 * Blocks the task of a run that only a person can help, with what that person has to do.
 *
 * Undefined: a repeat may help, or the run has no task. False: the task is not blocked, or no longer this agent's; or this
 * Paperclip does not answer, or refuses. A request without an answer may have been carried out, as by a Paperclip that is
 * busy, so the task is read again. Never rejects.
 */
export async function blockTask(
  outcome: Outcome,
  ctx: AdapterExecutionContext,
  boardApiKey: string | undefined,
): Promise<boolean | undefined> {
  const { personAction, mayRepeat } = outcome;
  const { issueId } = objectOf(ctx.context);
  if (!personAction || typeof issueId !== "string" || (mayRepeat && isRepeated(outcome, ctx))) return undefined;
  const api = new PaperclipApi(boardApiKey);
  const path = `/issues/${encodeURIComponent(issueId)}`;
  for (let attempt = 1; attempt <= ATTEMPTS; attempt++) {
    const issue = await api.request(path);
    if (isUnanswered(issue)) continue;
    const { status, body } = issue;
    if (status !== 200 || body.assigneeAgentId !== ctx.agent.id) return false;
    if (!WORKABLE.has(body.status)) return body.status === "blocked";
    const unblockDescriptor = { owner: "board", action: personAction };
    const answer = await api.request(path, { status: "blocked", unblockDescriptor }, "PATCH");
    if (!isUnanswered(answer)) return answer.status < 300;
  }
  return false;
}
