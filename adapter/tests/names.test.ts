import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { namesIn, plain, titleOf } from "../src/names.ts";
import type { AdapterExecutionContext } from "../src/paperclip.ts";

/** `tests/client/test_names.py` reads the same file. */
const CASES: Case[] = JSON.parse(readFileSync(new URL("../../tests/fixtures/names.json", import.meta.url), "utf8"));

interface Case {
  readonly case: string;
  readonly context: AdapterExecutionContext;
  readonly agent: string;
  readonly task: string;
  readonly title: string;
}

describe("the names of agent and task", () => {
  test.each(CASES)("are plain text: $case", ({ context, agent, task, title }) => {
    const names = namesIn(context);
    expect({ agent: names.agent ?? "", task: names.task ?? "" }).toEqual({ agent, task });
    expect([plain(agent), plain(task)]).toEqual([agent, task]);
    expect(titleOf(names, "agent-1", "task_1").startsWith(title)).toBe(true);
  });
});
