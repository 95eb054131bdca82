import { describe, expect, test } from "vitest";
import { configProblems } from "../src/request/config.ts";
import { NESTING_LIMIT, VALUE_LIMIT } from "../src/request/plain.ts";
import { preparation } from "../src/request/preparation.ts";
import { InvalidRequest } from "../src/request/problems.ts";
import { composed } from "../src/request/prompt.ts";
import { expanded, minimal, VECTORS } from "./support/vectors.ts";

function outcome(context: unknown): unknown {
  try {
    const { request, secrets, prompt, notes } = preparation(context);
    return JSON.parse(JSON.stringify({ request, secrets, prompt, notes }));
  } catch (error) {
    if (error instanceof InvalidRequest) return { refused: error.message };
    throw error;
  }
}

describe("a context means the same in both languages", () => {
  test.each(VECTORS.vectors)("$name", ({ name: _, context, ...expected }) => {
    expect(outcome(expanded(context))).toEqual(expanded(expected));
  });
});

test.each(VECTORS.prompts)("a prompt is composed as the worker does: %#", ({ source, path, fresh, resumed }) => {
  const run = { runId: "run-1", agentId: "agent-1", companyId: "company-1", instructionsPath: path };
  expect(composed(source, run, false)).toEqual(fresh);
  expect(composed(source, run, true)).toEqual(resumed);
});

test("a refusal lists the wrong fields by Paperclip's paths", () => {
  const context = minimal({ timeoutSec: "soon", model: "nameless" });
  expect(() => preparation(context)).toThrow(
    expect.objectContaining({ fields: ["config.model", "config.timeoutSec"], code: "invalid_request" }),
  );
});

test("values that are not plain data are left out, wherever they are", () => {
  class Tracer {
    readonly secret = "canary";
  }
  const context = minimal();
  context.startupTraceContext = { tracer: new Tracer() };
  context.onLog = () => undefined;
  context.context = { tracer: new Tracer(), call: () => 1, symbol: Symbol("x"), big: 10n, map: new Map(), kept: 1 };
  expect(preparation(context).prompt.context).toEqual({ kept: 1 });
});

test("cyclic objects are cut at the cycle", () => {
  const context = minimal();
  context.context = { name: "outer", inner: { list: [] as unknown[] } };
  context.context.inner.up = context.context;
  context.context.inner.list.push(context.context.inner, 1);
  expect(preparation(context).prompt.context).toEqual({ name: "outer", inner: { list: [null, 1] } });
});

test("a shared object is kept in each place", () => {
  const shared = { id: 1 };
  const context = { ...minimal(), context: { a: shared, b: [shared, shared] } };
  expect(preparation(context).prompt.context).toEqual({ a: shared, b: [shared, shared] });
});

test("a small graph that unfolds beyond the limit is refused", () => {
  let value: unknown = "end";
  for (let level = 0; level < NESTING_LIMIT - 4; level += 1) value = [value, value];
  expect(() => preparation({ ...minimal(), context: { value } })).toThrow(`more than ${VALUE_LIMIT} values`);
});

test("dates become JSON's text", () => {
  const context = minimal();
  context.agent.createdAt = new Date("2026-01-02T03:04:05Z");
  context.agent.pausedAt = new Date(Number.NaN);
  expect(preparation(context).prompt.agent).toMatchObject({ createdAt: "2026-01-02T03:04:05.000Z", pausedAt: null });
});

test("a field with the name of an inherited property is data", () => {
  const context = JSON.parse('{"__proto__": {"model": "a/b"}, "constructor": {"x": 1}}');
  const taken = preparation({ ...minimal(), context }).prompt.context;
  expect(Object.keys(taken ?? {})).toEqual(["__proto__", "constructor"]);
  expect(configProblems(JSON.parse('{"__proto__": {"model": "a/b"}}'))).toMatchObject([{ field: "config.model" }]);
});

test("a configuration without a wake has the same errors as with one", () => {
  expect(configProblems({ model: "a/b" })).toEqual([]);
  expect(configProblems(undefined)).toEqual([{ field: "config", remedy: "is missing" }]);
  expect(configProblems({ model: "a/b", graceSec: "soon", cwd: "here" }).map(({ field }) => field)).toEqual([
    "config.graceSec",
  ]);
});
