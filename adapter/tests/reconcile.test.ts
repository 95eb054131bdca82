/** Which lost runs the reconciler treats, and what it does for them. Temporal's list and Paperclip's answers are made here. */

import { describe, expect, it } from "vitest";
import type { JsonObject } from "../src/paperclip.ts";
import { PaperclipApi } from "../src/paperclip-api.ts";
import { Reconciler } from "../src/reconcile.ts";
import { settingsFrom } from "../src/settings.ts";
import { Temporal } from "../src/temporal.ts";

const contextSnapshot = { issueId: "issue-1" };
const LOST = { status: "failed", errorCode: "process_lost", agentId: "ada", companyId: "acme", contextSnapshot };
const TASK = { assigneeAgentId: "ada", status: "in_progress", executionBlocker: null };

/** A Temporal without a server, with one open run. */
class OneRun extends Temporal {
  override list() {
    const searchAttributes = { AgentId: ["ada"], PaperclipRunId: ["run-1"], RunPhase: ["running"] };
    return (async function* () {
      yield { workflowId: "agent-run:ada", runId: "first", searchAttributes };
    })() as never;
  }
}

/** Paperclip's records of the run, of its task, and of the agent's runs; one without a record is unknown to it. */
class Paperclip extends PaperclipApi {
  readonly requests: string[] = [];
  readonly #records: JsonObject;
  /** The next request for it is answered with 500. */
  readonly #failing: RegExp | undefined;

  constructor(records: JsonObject, failing?: RegExp) {
    super(undefined);
    this.#records = { "heartbeat-runs": LOST, issues: TASK, companies: { list: [] }, agents: {}, ...records };
    this.#failing = failing;
  }
  override async request(path: string) {
    const isFirst = !this.requests.includes(path);
    this.requests.push(path);
    if (isFirst && this.#failing?.test(path)) return { status: 500, body: {} };
    const body = this.#records[path.split("/")[1] ?? ""] as JsonObject | undefined;
    return body === undefined ? { status: 404, body: {} } : { status: 200, body };
  }
  get wakes() {
    return this.requests.filter((path) => path.endsWith("/wakeup")).length;
  }
}

/** The steps of two rounds. */
async function stepsWith(paperclip: Paperclip): Promise<string[]> {
  const reconciler = new Reconciler(new OneRun(settingsFrom({})), paperclip, 0);
  return [...(await reconciler.round()), ...(await reconciler.round())].map(({ step }) => step);
}

describe("a lost run", () => {
  it.each([
    ["whose server was killed", LOST],
    ["with the plugin's own code", { ...LOST, errorCode: "controller_lease_lost" }],
    ["whose result Paperclip dropped", { ...LOST, errorCode: "adapter_failed", resultJson: {} }],
  ])("%s has its agent woken, once", async (_, run) => {
    const paperclip = new Paperclip({ "heartbeat-runs": run });
    expect(await stepsWith(paperclip)).toEqual(["woken"]);
    expect(paperclip.wakes).toBe(1);
  });

  it.each(["^/heartbeat-runs/", "^/issues/", "^/companies/", "/wakeup$"])(
    "is not given up when %s fails",
    async (path) => {
      expect((await stepsWith(new Paperclip({}, new RegExp(path)))).at(-1)).toBe("woken");
    },
  );

  it.each([
    ["is done", { issues: { ...TASK, status: "done" } }],
    ["is another agent's now", { issues: { ...TASK, assigneeAgentId: "another" } }],
    ["is held for another run", { issues: { ...TASK, executionBlocker: { runId: "another", recoveryActionId: "a" } } }],
    ["has an open run", { companies: { list: [{ status: "scheduled_retry", contextSnapshot }] } }],
  ])("is left alone when its task %s", async (_, records) => {
    const paperclip = new Paperclip(records);
    expect(await stepsWith(paperclip)).toEqual(["nothing to do"]);
    expect(paperclip.wakes).toBe(0);
  });
});

describe("a run", () => {
  it.each([
    ["works", { ...LOST, status: "running", errorCode: null }],
    ["was cancelled", { ...LOST, status: "cancelled", errorCode: null }],
    ["failed", { ...LOST, errorCode: "provider_unavailable" }],
    ["has its result", { ...LOST, errorCode: "adapter_failed", resultJson: { workflowRunId: "first" } }],
    ["is another agent's", { ...LOST, agentId: "another" }],
  ])("that %s is not lost", async (_, run) => {
    const paperclip = new Paperclip({ "heartbeat-runs": run });
    expect(await stepsWith(paperclip)).toEqual([]);
    expect(new Set(paperclip.requests)).toEqual(new Set(["/heartbeat-runs/run-1"]));
  });

  it("of another Paperclip is asked for once", async () => {
    const paperclip = new Paperclip({ "heartbeat-runs": undefined });
    expect(await stepsWith(paperclip)).toEqual([]);
    expect(paperclip.requests).toHaveLength(1);
  });
});
