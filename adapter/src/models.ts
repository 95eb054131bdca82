/**
 * The models that Paperclip offers for an agent. Which ones work depends on the worker's OpenCode configuration; an
 * operator can set `PAPERCLIP_ADAPTER_MODELS`, which Paperclip itself prefers to this list.
 */

import { execFile } from "node:child_process";
import { promisify } from "node:util";
import type { AdapterModel } from "./paperclip.ts";

const KNOWN_MODELS = [
  ...["anthropic/claude-opus-4-7", "anthropic/claude-sonnet-4-6", "anthropic/claude-haiku-4-5"],
  ...["openai/gpt-4o", "google/gemini-2.5-pro", "google/gemini-2.5-flash"],
];
const COMMAND_TIMEOUT_MS = 20_000;
const CACHE_MS = 60_000;
const OUTPUT_LIMIT = 4 * 1024 * 1024;
/** Variables that a local OpenCode needs to know its providers. Not all: Paperclip's own keys are in its environment. */
const PASSED_VARIABLES =
  /^(PATH|HOME|LANG|LC_.*|TZ|XDG_.*|(HTTPS?|NO)_PROXY|(https?|no)_proxy|NODE_EXTRA_CA_CERTS|SSL_CERT_FILE|OPENCODE_CONFIG|(ANTHROPIC|OPENAI|OPENROUTER|GEMINI|GOOGLE|AZURE|AWS|MISTRAL|GROQ)_.*)$/;

/** A fixed list for a host without OpenCode. */
export const models: AdapterModel[] = KNOWN_MODELS.map(model);

let cached: { at: number; models: AdapterModel[] } | undefined;

/** The output of a local `opencode models`, cached for a minute; empty without one: Paperclip then shows `models`. */
export async function listModels(): Promise<AdapterModel[]> {
  if (cached && Date.now() - cached.at < CACHE_MS) return cached.models;
  const found = modelsIn(await runModelsCommand().catch(() => ""));
  if (found.length > 0) cached = { at: Date.now(), models: found };
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

async function runModelsCommand(): Promise<string> {
  const passed = Object.entries(process.env).filter(([name]) => PASSED_VARIABLES.test(name));
  const env = { ...Object.fromEntries(passed), OPENCODE_DISABLE_PROJECT_CONFIG: "true" };
  const limits = { timeout: COMMAND_TIMEOUT_MS, maxBuffer: OUTPUT_LIMIT, killSignal: "SIGKILL" } as const;
  return (await promisify(execFile)("opencode", ["models"], { env, ...limits })).stdout;
}
