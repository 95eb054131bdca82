/** What the two languages agree on: written by `python -m tests.paperclip.vectors`, expected here. */
import { readFileSync } from "node:fs";
import { isObject } from "../../src/request/plain.ts";

const FIXTURES = new URL("../../../tests/fixtures/", import.meta.url);
/** Agents of the capture ran a dummy adapter without a model. */
const MODEL = "anthropic/claude-sonnet-4-6";

// biome-ignore lint/suspicious/noExplicitAny: contexts are data of any shape, right and wrong ones
export type Data = any;

export interface Vector {
  readonly name: string;
  readonly context: Data;
  readonly refused?: string;
  readonly request?: Data;
  readonly secrets?: Data;
  readonly prompt?: Data;
  readonly notes?: string[];
}

export function fixture(path: string): Data {
  return JSON.parse(readFileSync(new URL(path, FIXTURES), "utf8"));
}

/** A real execution context, captured from a live Paperclip (tokens replaced). */
export function captured(file: string): Data {
  const context = fixture(`paperclip/${file}`);
  context.config.model ??= MODEL;
  return context;
}

/** The smallest context that can run, with `config` on top. */
export function minimal(config: Data = {}): Data {
  return {
    runId: "run-1",
    agent: { id: "agent-1", companyId: "company-1", name: "Ada" },
    config: { model: MODEL, ...config },
  };
}

/** `value` with what its short forms stand for. */
export function expanded(value: Data): Data {
  if (Array.isArray(value)) return value.map(expanded);
  if (!isObject(value)) return value;
  if (typeof value["<captured>"] === "string") return captured(value["<captured>"]);
  if (typeof value["<long>"] === "number") return "x".repeat(value["<long>"]);
  return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, expanded(item)]));
}

export const VECTORS: { prompts: Data[]; vectors: Vector[] } = fixture("preparation/vectors.json");
