/** The form of an agent's configuration in Paperclip, as `agent_runs/contracts/form.py` describes it. */

import form from "../../agent_runs/contracts/form.json" with { type: "json" };
import type { ConfigField } from "./paperclip.ts";

/** The form's fields, in order. Values are saved flat into `adapterConfig`. */
export function configSchema(): { fields: ConfigField[] } {
  return structuredClone(form) as { fields: ConfigField[] };
}
