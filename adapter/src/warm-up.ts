/**
 * Does ahead of time what a process's first execution would otherwise do at once: protobufjs generates code for each of
 * Temporal's messages when it is first used, and Node loads some of its own modules lazily. All of it takes some hundred
 * milliseconds of a core, so it is done in small slices between which the host's other work has the event loop.
 */

import type { Connection } from "@temporalio/client";
import proto from "@temporalio/proto";
import { exportJWK, generateKeyPair } from "jose";
import { sealerOf } from "./sealing.ts";
import { settingsFrom } from "./settings.ts";
import { AgentRunClient, temporalFor } from "./temporal.ts";
import { yieldToEventLoop } from "./waits.ts";

/** The longest slice. */
const SLICE_MS = 4;

/** The parts of protobufjs's messages and services that are used here. */
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

// The first of them resolves the whole protocol at once. That takes a tenth of the time that loading it takes.
(proto.google.rpc.Status as unknown as MessageType).setup();

let started: Promise<void> | undefined;

/** Resolves when everything is loaded; starts with the first call. Never rejects. */
export function warmUp(): Promise<void> {
  started ??= runSteps();
  return started;
}

async function runSteps(): Promise<void> {
  await runInSlices(messageSteps());
  await runInSlices(methodSteps());
  for (const step of [createConnection, encodeStart, seal, loadFetch]) {
    await yieldToEventLoop();
    await step().catch(() => undefined); // an execution reports the same error
  }
}

/** Creates the connection's objects; nothing is connected. */
async function createConnection(): Promise<void> {
  temporalFor(settingsFrom(process.env));
}

/** Encodes a start that is not sent. */
async function encodeStart(): Promise<void> {
  const workflowService = { startWorkflowExecution: async () => ({ runId: "none" }) };
  const client = new AgentRunClient({ connection: { workflowService, plugins: [] } as unknown as Connection });
  const names = { workflowId: "none", requestId: "none", taskQueue: "none", summary: "none" };
  await client.startOrAttach({ ...names, input: {}, memo: { task: "none" }, searchAttributes: { AgentId: "none" } });
}

/** Seals a text that is not used, with a key that is not kept. */
async function seal(): Promise<void> {
  const { publicKey } = await generateKeyPair("ECDH-ES", { crv: "P-256", extractable: true });
  await yieldToEventLoop();
  const sealer = await sealerOf(JSON.stringify(await exportJWK(publicKey)), "none");
  await yieldToEventLoop();
  const binding = { purpose: "join", workflowId: "none", companyId: "none", runId: "none" } as const;
  await sealer.seal({ binding });
}

/** Node loads `fetch` and its classes when they are first named. */
async function loadFetch(): Promise<void> {
  void globalThis.Response;
  await yieldToEventLoop();
  await (await fetch("data:,")).text();
}

/** Sets up the messages of the calls, and all messages in them. */
function* messageSteps(): Generator<() => void> {
  const services = workflowservice.v1 as unknown as { [name: string]: MessageType };
  const first = CALLS.flatMap((call) => [services[`${call}Request`], services[`${call}Response`]]);
  const refusals = [proto.google.rpc.Status, errordetails.v1.WorkflowExecutionAlreadyStartedFailure];
  const pending: unknown[] = [...first, ...refusals];
  const seen = new Set<unknown>();
  for (let next = pending.pop(); next !== undefined; next = pending.pop()) {
    if (seen.has(next) || !isMessage(next)) continue;
    seen.add(next);
    const message = next;
    yield () => message.setup();
    for (const field of message.fieldsArray) pending.push(field.resolve().resolvedType);
  }
}

/** Resolves the types that a connection looks up, for each method of its services. */
function* methodSteps(): Generator<() => void> {
  for (const service of [workflowservice.v1.WorkflowService, operatorservice.v1.OperatorService]) {
    for (const method of (service as unknown as ServiceType).methodsArray) {
      yield () => {
        const { resolvedRequestType, resolvedResponseType } = method.resolve();
        void [resolvedRequestType.ctor, resolvedResponseType.ctor]; // generated when they are read
      };
    }
  }
}

function isMessage(found: unknown): found is MessageType {
  return typeof (found as MessageType | null)?.setup === "function";
}

async function runInSlices(steps: Iterable<() => void>): Promise<void> {
  let began = performance.now();
  for (const step of steps) {
    step();
    if (performance.now() - began < SLICE_MS) continue;
    await yieldToEventLoop();
    began = performance.now();
  }
}
