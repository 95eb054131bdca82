/** A Paperclip that fails for a moment: the reconciler asks again. Its answers, and Temporal's list, are made here. */

import { expect, test } from "vitest";
import { type JsonObject, objectOf } from "../src/paperclip.ts";
import { PaperclipApi } from "../src/paperclip-api.ts";
import { Reconciler } from "../src/reconcile.ts";
import { settingsFrom } from "../src/settings.ts";
import { Temporal } from "../src/temporal.ts";

/** A Temporal without a server, with one open run. */
class OneRun extends Temporal {
  override list() {
    const searchAttributes = { AgentId: ["ada"], PaperclipRunId: ["run-1"], RunPhase: ["running"] };
    return (async function* () {
      yield { workflowId: "agent-run:ada", runId: "first", searchAttributes };
    })() as never;
  }
}

/** Answers each request as a Paperclip that has lost the run; the first one that `failing` names with 500. */
class FailingOnce extends PaperclipApi {
  #failing: RegExp | undefined;

  constructor(failing: RegExp) {
    super(undefined);
    this.#failing = failing;
  }
  override async request(path: string) {
    if (this.#failing?.test(path)) {
      this.#failing = undefined;
      return { status: 500, body: {} };
    }
    const lost = { status: "failed", errorCode: "process_lost", agentId: "ada", contextSnapshot: { issueId: "i" } };
    const bodies: JsonObject = { "heartbeat-runs": lost, issues: { assigneeAgentId: "ada" }, companies: { list: [] } };
    return { status: 200, body: objectOf(bodies[path.split("/")[1] ?? ""]) };
  }
}

test.each(["^/issues/", "/wakeup$", "^/companies/", "^/heartbeat-runs/"])(
  "a failed request to %s is repeated",
  async (path) => {
    const reconciler = new Reconciler(new OneRun(settingsFrom({})), new FailingOnce(new RegExp(path)), 0);
    const steps = [...(await reconciler.round()), ...(await reconciler.round())].map(({ step }) => step);
    expect(steps.at(-1)).toBe("woken");
  },
);
