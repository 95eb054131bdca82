/** The package's entry: Paperclip's server calls `createServerAdapter` once, synchronously, when it loads the adapter. */

import form from "../../agent_runs/agents/form.json" with { type: "json" };
import models from "../../agent_runs/agents/models.json" with { type: "json" };
import { execute } from "./execute.ts";
import { scheduleReconciler } from "./reconcile.ts";
import { settingsFrom } from "./settings.ts";
import { listSkills } from "./skills.ts";
import { temporalFor } from "./temporal.ts";
import { testEnvironment } from "./test-environment.ts";
import { yieldToEventLoop } from "./waits.ts";

/**
 * Creates the adapter. Nothing is connected or read before the first call of one of its functions, except by the
 * reconciler, which begins some seconds later to look for runs that this server has lost.
 *
 * @param type its own, or that of Paperclip's OpenCode adapter, which this one then replaces: see `build.mjs`.
 */
export function createServerAdapter(type: "opencode_k8s" | "opencode_local" = "opencode_k8s") {
  scheduleReconciler();
  void warmUp().catch(() => undefined); // an execution reports the same error
  return {
    type,
    execute,
    testEnvironment,
    // suggestions, next to a free text; `PAPERCLIP_ADAPTER_MODELS` replaces them
    models,
    listSkills,
    // Paperclip stores the desired skills itself; nothing has to be installed
    syncSkills: listSkills,
    // the values are saved flat into `adapterConfig`
    getConfigSchema: () => structuredClone({ fields: form.fields }),
    agentConfigurationDoc: form.documentation,
    supportsLocalAgentJwt: true,
    supportsInstructionsBundle: true,
    instructionsPathKey: "instructionsFilePath",
    requiresMaterializedRuntimeSkills: true,
    runtimeToolDelivery: "environment" as const,
  };
}

/**
 * Does right after the load what a first execution would otherwise do at once, which takes some 40 ms of a core: the SDK
 * generates code for each method of Temporal's service, and Node loads `fetch` when it is first used.
 */
async function warmUp(): Promise<void> {
  await yieldToEventLoop();
  temporalFor(settingsFrom(process.env)); // nothing is connected
  await yieldToEventLoop();
  await (await fetch("data:,")).text();
}
