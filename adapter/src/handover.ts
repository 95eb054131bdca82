/**
 * The moment at which an outcome changes hands.
 *
 * A run keeps its outcome until it is told `collected`. Told too early, a Paperclip that dies before it has stored the
 * result loses it; never told, the task's next wake would be given the old outcome instead of a run. So it is told once
 * Paperclip's own record of the run names our workflow in its result, which only a stored result does; and a wake that
 * finds a finished run first asks whether that one's outcome has been stored before.
 * A Paperclip that cannot be asked counts as having stored what was returned to it.
 */

import { HostApi, hostApi, objectOf } from "./host-api.ts";
import { collected } from "./outcome.ts";
import { shutdown } from "./shutdown.ts";
import type { Run, Temporal } from "./temporal.ts";
import { BackOff, sleep } from "./waiting.ts";

const OPEN: ReadonlySet<unknown> = new Set(["queued", "running", "scheduled_retry"]);
/** Paperclip's own limit for what it does after a run has returned, and some. */
const PATIENCE_MS = 90_000;
const UNREACHABLE_MS = 15_000;
/** Without a Paperclip to ask: for telling the run before we return. */
const HAND_OVER_MS = 5000;

/** What has to be known to recognise a stored result. */
export interface Delivery {
  /** Paperclip's id of the wake that gets the outcome. */
  runId: string;
  workflowRunId: string;
  token?: string;
}

/** Sees to it that the run is told, now or when its result is stored. Returns soon; never rejects. */
export async function handOver(temporal: Temporal, run: Run, delivery: Delivery): Promise<void> {
  const api = apiFor(delivery.token);
  const told = () => collected(temporal, run).catch(() => undefined);
  if (api === undefined) {
    await Promise.race([told(), sleep(HAND_OVER_MS)]);
    return;
  }
  void storedBy(api, delivery)
    .then((stored) => (stored ? told() : undefined))
    .catch(() => undefined);
}

/** Whether one of these wakes has got the outcome of this workflow run already. False when nobody knows. */
export async function deliveredBefore(
  runIds: readonly string[],
  workflowRunId: string,
  token?: string,
): Promise<boolean> {
  const api = apiFor(token);
  if (api === undefined) return false;
  for (const runId of [...runIds].reverse()) {
    if ((await recordOf(api, { runId, workflowRunId })) === "stored") return true;
  }
  return false;
}

/** Waits for Paperclip's record. False: it ended the run otherwise, or is ending itself; the outcome stays. */
async function storedBy(api: HostApi, delivery: Delivery): Promise<boolean> {
  const began = Date.now();
  const backOff = new BackOff(100, 2000);
  let heard = began;
  for (;;) {
    const record = await recordOf(api, delivery);
    if (record === "stored" || record === "unknown run") return true;
    if (record === "ended otherwise") return false;
    const now = Date.now();
    if (record === "open") heard = now;
    if (now - heard > UNREACHABLE_MS) return true;
    if (now - began > PATIENCE_MS) return false;
    await backOff.wait(shutdown());
  }
}

type Known = "stored" | "ended otherwise" | "open" | "unknown run" | "no answer";

async function recordOf(api: HostApi, { runId, workflowRunId }: Delivery): Promise<Known> {
  const { status, body } = await api.ask(`/heartbeat-runs/${encodeURIComponent(runId)}`);
  if (status === 404 || status === 401 || status === 403) return "unknown run";
  if (status !== 200) return "no answer";
  if (OPEN.has(body.status)) return "open";
  return objectOf(body.resultJson).workflowRunId === workflowRunId ? "stored" : "ended otherwise";
}

function apiFor(token: string | undefined): HostApi | undefined {
  const base = hostApi(process.env);
  return base === undefined ? undefined : new HostApi(base, token);
}
