/**
 * Models to choose from. What really works is up to the worker's OpenCode configuration; an operator who knows sets
 * `PAPERCLIP_ADAPTER_MODELS`, which Paperclip itself prefers to all of this.
 */

import { execFile } from "node:child_process";
import type { AdapterModel } from "./paperclip.ts";

const STATIC = [
  ...["anthropic/claude-opus-4-7", "anthropic/claude-sonnet-4-6", "anthropic/claude-haiku-4-5"],
  ...["openai/gpt-4o", "google/gemini-2.5-pro", "google/gemini-2.5-flash"],
];
const PATIENCE_MS = 20_000;
const FRESH_MS = 60_000;
const OUTPUT_LIMIT = 4 * 1024 * 1024;
/** What a local OpenCode needs to know its providers. Never all: Paperclip's own keys are in its environment. */
const PASSED_ON =
  /^(PATH|HOME|LANG|LC_.*|TZ|XDG_.*|(HTTPS?|NO)_PROXY|(https?|no)_proxy|NODE_EXTRA_CA_CERTS|SSL_CERT_FILE|OPENCODE_CONFIG|(ANTHROPIC|OPENAI|OPENROUTER|GEMINI|GOOGLE|AZURE|AWS|MISTRAL|GROQ)_.*)$/;

export const models: AdapterModel[] = STATIC.map(model);

let known: { at: number; models: AdapterModel[] } | undefined;

/** What a local `opencode models` lists, remembered for a minute; empty without one: Paperclip then shows `models`. */
export async function listModels(): Promise<AdapterModel[]> {
  return known && Date.now() - known.at < FRESH_MS ? known.models : refreshModels();
}

/** As `listModels`, asked anew. */
export async function refreshModels(): Promise<AdapterModel[]> {
  const found = modelsIn(await asked("opencode").catch(() => ""));
  if (found.length > 0) known = { at: Date.now(), models: found };
  return found;
}

/** The models in the output of `opencode models`: one `<provider>/<model>` at the beginning of a line, sorted. */
export function modelsIn(output: string): AdapterModel[] {
  const ids = output.split(/\r?\n/).map((line) => line.trim().split(/\s+/)[0] ?? "");
  const named = ids.filter((id) => /^[^/]+\/.+$/.test(id));
  const order = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
  return [...new Set(named)].sort(order.compare).map(model);
}

function model(id: string): AdapterModel {
  return { id, label: id };
}

function asked(command: string): Promise<string> {
  const passed = Object.entries(process.env).filter(([name]) => PASSED_ON.test(name));
  const env = { ...Object.fromEntries(passed), OPENCODE_DISABLE_PROJECT_CONFIG: "true" };
  return new Promise((resolve, reject) => {
    const limits = { timeout: PATIENCE_MS, maxBuffer: OUTPUT_LIMIT, killSignal: "SIGKILL" as const };
    execFile(command, ["models"], { env, ...limits }, (error, stdout) => (error ? reject(error) : resolve(stdout)));
  });
}
