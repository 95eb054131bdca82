/** The package's entry: Paperclip's server calls `createServerAdapter` once, synchronously, when it loads the adapter. */

import form from "../../agent_runs/contracts/form.json" with { type: "json" };
import { execute } from "./execute.ts";
import { scheduleReconciler } from "./reconcile.ts";
import { sessionCodec } from "./session.ts";
import { adapterTypeIn } from "./settings.ts";
import { listSkills } from "./skills.ts";
import { testEnvironment } from "./test-environment.ts";
import { warmUp } from "./warm-up.ts";

export const type = adapterTypeIn(process.env);

/**
 * Creates the adapter. Nothing is connected or read before the first call of one of its functions, except by the
 * reconciler, which begins some seconds later to look for runs that this server has lost.
 */
export function createServerAdapter() {
  scheduleReconciler();
  void warmUp();
  return {
    type,
    execute,
    testEnvironment,
    sessionCodec,
    models: form.models,
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
    runtimeToolDelivery: "environment",
  };
}
