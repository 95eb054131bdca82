/**
 * Makes ahead what is otherwise made by a process's first execution, all at once: the code of Temporal's messages, which
 * protobufjs writes for each when it is first used, and what Node itself loads lazily. In small pieces, with turns of
 * the host's event loop between them, because the whole takes some hundred milliseconds of a core.
 */

import type { Connection } from "@temporalio/client";
import proto from "@temporalio/proto";
import { exportJWK, generateKeyPair } from "jose";
import type { AdapterExecutionContext } from "./paperclip.ts";
import { prepare } from "./request.ts";
import { sealerOf } from "./sealing.ts";
import { settingsFrom } from "./settings.ts";
import { AgentRunClient, temporalFor } from "./temporal.ts";
import { turn } from "./waiting.ts";

/** After so long a piece the others have their turn. */
const TURN_MS = 4;

/** Messages and services of protobufjs, as far as they matter here. */
interface MessageType {
  fieldsArray: { resolve(): { resolvedType: unknown } }[];
  setup(): unknown;
}
interface ServiceType {
  methodsArray: { resolve(): { resolvedRequestType: { ctor: unknown }; resolvedResponseType: { ctor: unknown } } }[];
}

const { workflowservice, operatorservice, errordetails } = proto.temporal.api;
const CALLS = [
  "StartWorkflowExecution",
  "DescribeWorkflowExecution",
  "ListWorkflowExecutions",
  "UpdateWorkflowExecution",
  "PollWorkflowExecutionUpdate",
  "SignalWorkflowExecution",
  "RequestCancelWorkflowExecution",
  "GetWorkflowExecutionHistory",
] as const;

// The first of all resolves the whole protocol in one piece. That is a tenth of what it takes to load it.
(proto.google.rpc.Status as unknown as MessageType).setup();

let warm: Promise<void> | undefined;

/** Resolves when a first execution finds everything made; begins with the first call. Never rejects. */
export function warmedUp(): Promise<void> {
  warm ??= warming();
  return warm;
}

async function warming(): Promise<void> {
  await inTurns(messages());
  await inTurns(methods());
  for (const step of [connection, start, preparing, reading]) {
    await turn();
    await step().catch(() => undefined); // whatever it is, an execution tells of it
  }
}

/** Connects nothing. */
async function connection(): Promise<void> {
  temporalFor(settingsFrom(process.env));
}

/** A start that nobody hears of. */
async function start(): Promise<void> {
  const workflowService = { startWorkflowExecution: async () => ({ runId: "none" }) };
  const client = new AgentRunClient({ connection: { workflowService, plugins: [] } as unknown as Connection });
  const names = { workflowId: "none", requestId: "none", taskQueue: "none", summary: "none" };
  await client.startOrAttach({ ...names, input: {}, memo: { task: "none" }, searchAttributes: { AgentId: "none" } });
}

/** A request that nobody gets, sealed with a key that nobody keeps. */
async function preparing(): Promise<void> {
  const { publicKey } = await generateKeyPair("ECDH-ES", { crv: "P-256", extractable: true });
  await turn();
  const sealer = await sealerOf(JSON.stringify(await exportJWK(publicKey)), "none");
  await turn();
  await sealer.seal("secrets", {});
  await turn();
  const nobody: AdapterExecutionContext = {
    runId: "none",
    agent: { id: "none", companyId: "none", name: "none" },
    runtime: { sessionId: null, sessionParams: null, sessionDisplayId: null, taskKey: null },
    config: { model: "none/none", env: { NAME: "none" } },
    context: { taskId: "none", paperclipWake: { reason: "none", issue: { id: "none" } } },
    onLog: async () => undefined,
  };
  await prepare(nobody, settingsFrom({}), sealer, {}, {});
}

/** Node loads `fetch` and what belongs to it when it is named first. */
async function reading(): Promise<void> {
  void globalThis.Response;
  await turn();
  await (await fetch("data:,")).text();
}

function* messages(): Generator<() => void> {
  const services = workflowservice.v1 as unknown as { [name: string]: MessageType };
  const first = CALLS.flatMap((call) => [services[`${call}Request`], services[`${call}Response`]]);
  const refusals = [proto.google.rpc.Status, errordetails.v1.WorkflowExecutionAlreadyStartedFailure];
  const left: unknown[] = [...first, ...refusals];
  const seen = new Set<unknown>();
  for (let next = left.pop(); next !== undefined; next = left.pop()) {
    if (seen.has(next) || !isMessage(next)) continue;
    seen.add(next);
    const message = next;
    yield () => message.setup();
    for (const field of message.fieldsArray) left.push(field.resolve().resolvedType);
  }
}

/** What a connection looks up when it is made, of each of its services. */
function* methods(): Generator<() => void> {
  for (const service of [workflowservice.v1.WorkflowService, operatorservice.v1.OperatorService]) {
    for (const method of (service as unknown as ServiceType).methodsArray) {
      yield () => {
        const { resolvedRequestType, resolvedResponseType } = method.resolve();
        void [resolvedRequestType.ctor, resolvedResponseType.ctor]; // made when they are read
      };
    }
  }
}

function isMessage(found: unknown): found is MessageType {
  return typeof (found as MessageType | null)?.setup === "function";
}

async function inTurns(steps: Iterable<() => void>): Promise<void> {
  let began = performance.now();
  for (const step of steps) {
    step();
    if (performance.now() - began < TURN_MS) continue;
    await turn();
    began = performance.now();
  }
}
