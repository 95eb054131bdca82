/**
 * What an aborted run means, and how an agent is stopped for it.
 *
 * Paperclip's signal has two meanings. "Legacy controller lease lost" says that this server no longer owns the run: it
 * shuts down, slept, or lost its database. That alone must not stop anything, because the run can be joined later. Every
 * other reason is a person's or a rule's wish that the agent stops; Paperclip waits 60 s for an answer.
 * Source: Paperclip 2026.916.1, observed.
 */

import type { Cancelled } from "./contracts.ts";
import { HostApi, hostApi } from "./host-api.ts";
import { cancel } from "./outcome.ts";
import { patiently, type Run, type Talk, type Temporal } from "./temporal.ts";
import { GivenUp, linked, sleep } from "./waiting.ts";

export const LEASE_LOST = "Legacy controller lease lost";
/** Of the 60 s that Paperclip waits; the rest is for handing over. */
export const ANSWER_MS = 55_000;
/** Beyond the agent's own grace: for a worker to come back and for the pods to go. */
const PATIENCE_MS = 2 * 60_000;

/** Why a run was aborted. */
export type Abort = { kind: "cancel"; reason: string } | { kind: "lease lost" };

/** Why `signal` was aborted; undefined while it is not. */
export function abortOf(signal: AbortSignal | undefined): Abort | undefined {
  if (!signal?.aborted) return undefined;
  const { reason } = signal;
  const said = reason instanceof Error ? reason.message : typeof reason === "string" ? reason : "";
  if (said === LEASE_LOST) return { kind: "lease lost" };
  return { kind: "cancel", reason: said.slice(0, 500) || "Run cancelled" };
}

/**
 * Stops the run's agent. undefined when nobody confirmed it in time: then the wish is left with Temporal itself, so that
 * the next worker stops the agent, whatever becomes of this process.
 *
 * @param grace of the agent, in seconds.
 *
 * Rejects as `cancel` does, when the run will never answer.
 */
export async function stopped(
  temporal: Temporal,
  run: Run,
  reason: string,
  grace: number,
  talk: Talk,
  patience: number = ANSWER_MS + grace * 1000 + PATIENCE_MS,
): Promise<Cancelled | undefined> {
  try {
    return await linked([talk.signal], async (controller) => {
      const enough = new AbortController();
      const answer = cancel(temporal, run, reason, { ...talk, signal: controller.signal });
      const limit = sleep(patience, enough.signal).then(
        () => controller.abort(),
        () => undefined,
      );
      return await answer.finally(() => enough.abort()).finally(() => limit);
    });
  } catch (error) {
    if (!(error instanceof GivenUp) || talk.signal?.aborted) throw error;
    void patiently(temporal, () => run.cancel(), {}).catch(() => undefined);
    return undefined;
  }
}

/**
 * After a lost lease: whether Paperclip says that the run was cancelled, which a lost lease hides when the cancel came
 * before we had opted in. False when it cannot be asked.
 */
export async function wasCancelled(runId: string, token: string | undefined): Promise<boolean> {
  const base = hostApi(process.env);
  if (base === undefined) return false;
  const { body } = await new HostApi(base, token).ask(`/heartbeat-runs/${encodeURIComponent(runId)}`);
  return body.status === "cancelled";
}
