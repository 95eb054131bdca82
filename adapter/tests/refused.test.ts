/** A start that is refused or not answered: the result says what is known of the run. Temporal's answers are made here. */

import { expect, test } from "vitest";
import { LEASE_LOST } from "../src/abort.ts";
import { executeWith } from "../src/execute.ts";
import { settingsFrom } from "../src/settings.ts";
import { Code, Temporal } from "../src/temporal.ts";
import { fakeHost, partsFor } from "./support/paperclip-context.ts";
import { aRequest } from "./support/stack.ts";

const SERVER = "127.0.0.1:1";

/** A Temporal without a server, which answers a start with `answer`; the agent's run is that of another company. */
class Answering extends Temporal {
  readonly #answer: () => Promise<{ workflowRunId: string }>;

  constructor(answer: () => Promise<{ workflowRunId: string }>) {
    super(settingsFrom({ TEMPORAL_ADDRESS: SERVER }));
    this.#answer = answer;
  }
  override startOrAttach() {
    return this.#answer();
  }
  override list() {
    return (async function* () {})() as never;
  }
  override getHandle() {
    const description = { status: { name: "RUNNING" }, searchAttributes: { CompanyId: ["another"] } };
    return { describe: async () => description } as never;
  }
}

async function resultOf(answer: () => Promise<{ workflowRunId: string }>, host = fakeHost(aRequest())) {
  const temporal = new Answering(answer);
  const parts = partsFor(aRequest(), { server: { address: SERVER }, worker: { queue: "none" } }, { temporal });
  return await executeWith(host.context, parts);
}

test("another company's run of the same ids refuses it", async () => {
  const result = await resultOf(async () => ({ workflowRunId: "run" }));
  expect(result.errorMessage).toMatch(/^run .* of this agent belongs to another company$/);
  expect(result).toMatchObject({ errorCode: "invalid_request", executionRecovery: { kind: "bootstrap" } });
});

test("Temporal refuses it", async () => {
  const result = await resultOf(async () => {
    throw Object.assign(new Error("refused"), { code: Code.INVALID_ARGUMENT, details: "no such attribute" });
  });
  expect(result.errorMessage).toBe("Temporal at 127.0.0.1:1 refused the run: no such attribute");
  expect(result).toMatchObject({ errorCode: "temporal_refused", executionRecovery: { kind: "bootstrap" } });
});

test("a lost lease while no answer has come gives no evidence that nothing was started", async () => {
  const host = fakeHost(aRequest());
  const result = await resultOf(async () => {
    host.abort(LEASE_LOST);
    throw Object.assign(new Error("no connection"), { code: 14 });
  }, host);
  expect(result.errorCode).toBe("controller_lease_lost");
  expect(result.executionRecovery).toBeUndefined();
});
