/**
 * Does ahead of time what a process's first execution would otherwise do at once: a connection looks up the types of all
 * methods, for which protobufjs generates code, and Node loads some of its own modules lazily. It takes some hundred
 * milliseconds of a core, so it is done in small slices between which the host's other work has the event loop. What is
 * not here takes a few milliseconds at its first use: the code of other messages, the encoding of a start, the sealing.
 */

import proto from "@temporalio/proto";
import { settingsFrom } from "./settings.ts";
import { temporalFor } from "./temporal.ts";
import { yieldToEventLoop } from "./waits.ts";

/** The longest slice. */
const SLICE_MS = 4;

/** The part of protobufjs's services that is used here. */
interface ServiceType {
  methodsArray: { resolve(): { resolvedRequestType: { ctor: unknown }; resolvedResponseType: { ctor: unknown } } }[];
}

const { workflowservice, operatorservice } = proto.temporal.api;

// The first of them resolves the whole protocol at once. That takes a tenth of the time that loading it takes.
(proto.google.rpc.Status as unknown as { setup(): unknown }).setup();

let started: Promise<void> | undefined;

/** Resolves when everything is loaded; starts with the first call. Never rejects. */
export function warmUp(): Promise<void> {
  started ??= runSteps();
  return started;
}

async function runSteps(): Promise<void> {
  for (const step of [resolveMethods, createConnection, loadFetch]) {
    await yieldToEventLoop();
    await step().catch(() => undefined); // an execution reports the same error
  }
}

/** Resolves the types that a connection looks up, for each method of its services. */
async function resolveMethods(): Promise<void> {
  let began = performance.now();
  for (const service of [workflowservice.v1.WorkflowService, operatorservice.v1.OperatorService]) {
    for (const method of (service as unknown as ServiceType).methodsArray) {
      const { resolvedRequestType, resolvedResponseType } = method.resolve();
      void [resolvedRequestType.ctor, resolvedResponseType.ctor]; // generated when they are read
      if (performance.now() - began < SLICE_MS) continue;
      await yieldToEventLoop();
      began = performance.now();
    }
  }
}

/** Creates the connection's objects; nothing is connected. */
async function createConnection(): Promise<void> {
  temporalFor(settingsFrom(process.env));
}

/** Node loads `fetch` and its classes when they are first named. */
async function loadFetch(): Promise<void> {
  void globalThis.Response;
  await yieldToEventLoop();
  await (await fetch("data:,")).text();
}
