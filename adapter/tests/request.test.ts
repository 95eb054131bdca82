import { readFileSync } from "node:fs";
import { mkdir, mkdtemp, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { InvalidRequest } from "../src/errors.ts";
import type { AdapterExecutionContext } from "../src/paperclip.ts";
import type { PaperclipHelpers } from "../src/paperclip-helpers.ts";
import { prepare } from "../src/request.ts";
import { settingsFrom } from "../src/settings.ts";
import { type FakeApi, paperclipApi } from "./support/paperclip-api.ts";
import { type Data, opened, sealer } from "./support/sealed.ts";

const CANARY = "canary-5e1f";
const FIXTURES = new URL("../../tests/fixtures/paperclip/", import.meta.url);
const HOST: PaperclipHelpers = {
  renderPaperclipWakePrompt: (wake, options) => `wake ${(wake as Data)?.reason} ${JSON.stringify(options)}`,
  stringifyPaperclipWakePayload: (wake) => (wake ? JSON.stringify(wake) : null),
  isPaperclipRecoveryWakePayload: (wake) => Boolean((wake as Data)?.recovery),
  DEFAULT_PAPERCLIP_AGENT_PROMPT_TEMPLATE: "You are {{agent.id}}.",
  DEFAULT_PAPERCLIP_CONVERSATION_PROMPT_TEMPLATE: "A conversation.",
};

let home: string;
/** The folders of the agent's instructions and of its company's skills. */
let own: string;
let library: string;

beforeEach(async () => {
  home = await mkdtemp(join(tmpdir(), "paperclip-"));
  own = join(home, "instances", "default", "companies", "company-1", "agents", "agent-1", "instructions");
  library = join(home, "instances", "default", "skills", "company-1");
  await mkdir(own, { recursive: true });
  await mkdir(library, { recursive: true });
});

/** A real execution context, captured from a live Paperclip (tokens replaced). */
function captured(file: string): Data {
  return JSON.parse(readFileSync(new URL(file, FIXTURES), "utf8"));
}

/** The smallest context, with `changes` on top. */
function minimal(changes: Data = {}): Data {
  return { runId: "run-1", agent: { id: "agent-1", companyId: "company-1", name: "Ada" }, config: {}, ...changes };
}

/** The data with the functions and objects of the process that a live context has besides. */
function live(data: Data, more: Partial<AdapterExecutionContext> = {}): AdapterExecutionContext {
  return { ...data, onLog: async () => undefined, startupTraceContext: { secret: CANARY }, runtimeMcp: {}, ...more };
}

interface Options {
  readonly host?: PaperclipHelpers;
  readonly env?: NodeJS.ProcessEnv;
  readonly settings?: NodeJS.ProcessEnv;
}

async function prepared(ctx: AdapterExecutionContext, { host = HOST, env, settings = {} }: Options = {}) {
  const environment = { PAPERCLIP_HOME: home, ...env };
  const result = await prepare(ctx, settingsFrom(settings), await sealer(), host, environment);
  const { header, content } = await opened(result.wake.start.sealed);
  return { ...result, header, content, hostTexts: content.host };
}

describe("what the agent has spent of its monthly budget", () => {
  const agent = { id: "agent-1", companyId: "company-1", name: "Ada", budgetMonthlyCents: 500, spentMonthlyCents: 500 };
  let api: FakeApi;
  beforeEach(async () => {
    api = await paperclipApi();
  });
  afterEach(() => api.stop());

  test("is what Paperclip answers for this month: the agent's own record may be last month's", async () => {
    api.self = { ...agent, spentMonthlyCents: 120 };
    const { content, notes } = await prepared(live({ ...minimal({ agent }), authToken: "run-token" }));
    expect(content.context.agent).toEqual({ ...agent, spentMonthlyCents: 120 });
    expect([...api.tokens]).toEqual(["Bearer run-token"]);
    expect(notes).toEqual([]);
  });

  test("is not known without an answer, which a note says", async () => {
    const { content, notes } = await prepared(live(minimal({ agent })));
    const { spentMonthlyCents: _, ...unknown } = agent;
    expect(content.context.agent).toEqual(unknown);
    const note = expect.stringContaining("the agent's monthly budget does not cap this run");
    expect(notes).toEqual([note]);
    expect(content.host.notes).toEqual([note]);
  });

  test("is not asked for without a budget", async () => {
    await prepared(live(minimal({ agent: { ...agent, budgetMonthlyCents: 0 } })));
    expect(api.requests).toEqual([]);
  });
});

describe("the start of a run", () => {
  test("has readable ids, and the captured context as it is, sealed for this run alone", async () => {
    const data = captured("ctx-2-comment-wake-with-session.json");
    const { wake, header, content } = await prepared(live(data));
    const { sealed: _, ...ids } = wake.start;
    const task = data.context.taskId;
    expect(ids).toEqual({ runId: data.runId, agentId: data.agent.id, companyId: data.agent.companyId, task });
    expect(header.typ).toBe("agent-runs.run");
    expect(content.binding).toEqual({
      purpose: "run",
      workflowId: `agent-run:${data.agent.id}`,
      ...{ companyId: data.agent.companyId, runId: data.runId, task },
    });
    const { runId, agent, runtime, config, context, authToken, runtimeTools } = data;
    expect(content.context).toEqual({ runId, agent, runtime, config, context, authToken, runtimeTools });
  });

  test.each([
    [{ context: { taskId: "task", issueId: "issue" }, runtime: { taskKey: "key" } }, "task"],
    [{ context: { taskId: " ", issueId: " issue" }, runtime: { taskKey: "key" } }, " issue"],
    [{ context: { taskId: 7 }, runtime: { taskKey: "key" } }, "key"],
    [{ context: null }, null],
    [{}, null],
  ])("names the task: %j", async (changes, task) => {
    const { wake, content } = await prepared(live(minimal(changes)));
    expect(wake.start.task).toBe(task);
    expect(content.binding.task).toBe(task);
  });

  test("has Paperclip's names for Temporal's lists", async () => {
    const context = { taskId: "task", paperclipIssue: { identifier: "ACM-7", title: "A long task" } };
    const ctx = live(minimal({ runtime: { taskKey: "key" }, context }));
    const { wake } = await prepared(ctx);
    expect(wake).toMatchObject({ names: { agent: "Ada", task: "ACM-7 A long task" }, taskKey: "key" });
    const without = await prepared(ctx, { settings: { AGENT_RUNS_NAMES: "off" } });
    expect(without.wake.names).toEqual({});
  });

  test("carries the configuration unchecked: the worker refuses what is wrong", async () => {
    const { content } = await prepared(live(minimal({ config: { model: 7, env: [CANARY] } })));
    expect(content.context.config).toEqual({ model: 7, env: [CANARY] });
  });

  test("has what JSON has: no functions, and dates as text", async () => {
    const agent = { ...minimal().agent, createdAt: new Date("2026-01-02T03:04:05Z"), call: () => 1, none: undefined };
    const { content } = await prepared(live(minimal({ agent })));
    expect(content.context.agent).toEqual({ ...minimal().agent, createdAt: "2026-01-02T03:04:05.000Z" });
  });

  test("shows nothing outside the sealed text", async () => {
    const data = captured("ctx-4-project-workspace-and-secret.json");
    data.authToken = CANARY;
    data.config.env.MY_SECRET = CANARY;
    data.runtimeTools.bearerToken = CANARY;
    const { wake, notes, wakeText, content } = await prepared(live(data));
    expect(JSON.stringify([wake, notes, wakeText])).not.toContain(CANARY);
    expect(content.context.authToken).toBe(CANARY);
  });
});

describe("a context that cannot be sent is refused", () => {
  const refused = (data: Data) => prepared(live(data)).then(() => undefined, String);

  test.each([
    ["runId", minimal({ runId: undefined })],
    ["runId", minimal({ runId: "run 1" })],
    ["agent.id", minimal({ agent: { companyId: "company-1" } })],
    ["agent.id", minimal({ agent: { id: "a' OR '1' = '1", companyId: "company-1" } })],
    ["agent.companyId", minimal({ agent: { id: "agent-1", companyId: 5 } })],
  ])("without %s", async (field, data) => {
    expect(await refused(data)).toMatch(new RegExp(`^InvalidRequest: ${field} must start with a letter or digit`));
  });

  test("by all its wrong ids", async () => {
    expect(await refused({})).toMatch(/runId must.*; agent\.id must.*; agent\.companyId must/);
  });

  test.each([
    ["a cycle", { inner: {} as Data }],
    ["a BigInt", { inner: 1n }],
  ])("with what JSON cannot carry: %s", async (_, context) => {
    if (typeof context.inner === "object") context.inner.outer = context;
    expect(await refused(minimal({ context }))).toMatch(
      /^InvalidRequest: the execution context holds a value that JSON/,
    );
  });

  test("for which a history has no space", async () => {
    const noise = Array.from({ length: 120_000 }, () => Math.random().toString(36)).join("");
    const sent = prepared(live(minimal({ context: { paperclipTaskMarkdown: noise } })));
    await expect(sent).rejects.toThrow(InvalidRequest);
    await expect(sent).rejects.toThrow(
      /run is too large: [0-9]+ bytes packed exceed the limit of 786432; shorten the task/,
    );
  });
});

describe("a join", () => {
  const tools = { version: 1, bearerToken: "tools" };

  test("brings the wake's tokens, sealed for this wake alone", async () => {
    const data = minimal({ context: { taskId: "task-1" }, authToken: "token", runtimeTools: tools });
    const { wake } = await prepared(live(data));
    const { header, content } = await opened((await wake.sealJoin?.()) ?? "");
    expect(header.typ).toBe("agent-runs.join");
    expect(content).toEqual({
      binding: {
        ...{ purpose: "join", workflowId: "agent-run:agent-1", companyId: "company-1", runId: "run-1", task: "task-1" },
      },
      ...{ authToken: "token", toolsToken: "tools" },
    });
  });

  test("of a wake without a token brings none", async () => {
    const { wake } = await prepared(live(minimal({ runtimeTools: tools })));
    expect(await wake.sealJoin?.()).toBeUndefined();
  });
});

describe("Paperclip's texts", () => {
  test("the wake is rendered for a resumed session and for a fresh one", async () => {
    const fresh = await prepared(live(captured("ctx-1-first-wake-no-session.json")));
    const text = (resumedSession: boolean) =>
      `wake issue_assigned ${JSON.stringify({ conversationMode: false, suppressIssueDescription: true, resumedSession })}`;
    expect(fresh.hostTexts.wakePrompt).toEqual({ fresh: text(false), resumed: text(true) });
    expect(fresh.wakeText).toBe(text(false));
    expect(JSON.parse(fresh.hostTexts.wakePayload ?? "")).toMatchObject({ reason: "issue_assigned" });
    const resumed = await prepared(live(captured("ctx-2-comment-wake-with-session.json")));
    expect(resumed.wakeText).toBe(resumed.hostTexts.wakePrompt.resumed);
  });

  test("without Paperclip's renderer, or when it fails, the wake has no text", async () => {
    const ctx = live(minimal({ context: { paperclipWake: { reason: "assigned" } } }));
    expect(await prepared(ctx, { host: {} })).toMatchObject({ wakeText: "", notes: [] });
    const renderPaperclipWakePrompt = () => {
      throw new Error(CANARY);
    };
    const { hostTexts, notes, wakeText } = await prepared(ctx, { host: { renderPaperclipWakePrompt } });
    expect(hostTexts).toMatchObject({ wakePrompt: {}, notes });
    expect(wakeText).toBe("");
    expect(notes).toEqual([expect.stringContaining("renderer failed")]);
    expect(notes.join()).not.toContain(CANARY);
  });

  test("the heartbeat template is that of the wake's mode", async () => {
    const template = async (data: Data, host = HOST) =>
      (await prepared(live(data), { host })).hostTexts.heartbeatTemplate;
    expect(await template(minimal())).toBe(HOST.DEFAULT_PAPERCLIP_AGENT_PROMPT_TEMPLATE);
    expect(await template(minimal({ context: { conversationMode: true } }))).toBe(
      HOST.DEFAULT_PAPERCLIP_CONVERSATION_PROMPT_TEMPLATE,
    );
    expect(await template(minimal(), {})).toBeUndefined();
  });

  test("a wake that asks for a repair is marked", async () => {
    const repair = async (data: Data) => (await prepared(live(data))).hostTexts.repairWake;
    expect(await repair(minimal({ context: { paperclipWake: { recovery: { cause: "x" } } } }))).toBe(true);
    expect(await repair(minimal())).toBe(false);
  });

  test("the addresses are Paperclip's own and our setting", async () => {
    const env = { PAPERCLIP_RUNTIME_API_URL: "http://127.0.0.1:3100" };
    const settings = { AGENT_RUNS_PAPERCLIP_API_URL: "http://pods" };
    const { hostTexts } = await prepared(live(minimal()), { env, settings });
    expect(hostTexts).toMatchObject({ address: "http://127.0.0.1:3100", podsAddress: "http://pods" });
    const both = await prepared(live(minimal()), { env: { ...env, PAPERCLIP_API_URL: "http://first" } });
    expect(both.hostTexts.address).toBe("http://first");
    expect(both.hostTexts).not.toHaveProperty("podsAddress");
  });
});

describe("OpenCode's providers in Paperclip's environment", () => {
  const providers = async (text: string | undefined, config: Data = {}) => {
    const env = { PAPERCLIP_OPENCODE_PROVIDERS: text, GATEWAY_KEY: `${CANARY} "quoted"`, EMPTY: "" };
    return (await prepared(live(minimal({ config })), { env })).hostTexts.opencodeProviders;
  };

  test("are sealed as they are, with the values of the variables that they name", async () => {
    const block = (key: string) => ({ gateway: { options: { apiKey: key, more: "{env:EMPTY} {env:NONE} {file:x}" } } });
    const sealed = await providers(JSON.stringify(block("{env:GATEWAY_KEY}")));
    expect(JSON.parse(sealed)).toEqual(block(`${CANARY} "quoted"`));
    expect(await providers("no JSON")).toBe("no JSON");
    expect(await providers(undefined)).toBeUndefined();
  });

  test("name the agent's own variable before one of Paperclip's process", async () => {
    const config = { env: { GATEWAY_KEY: "the agent's" } };
    expect(await providers('{"a":"{env:GATEWAY_KEY}"}', config)).toBe('{"a":"the agent\'s"}');
  });
});

describe("the instructions file", () => {
  const withFile = (path: string) => prepared(live(minimal({ config: { instructionsFilePath: path } })));

  test("is read from Paperclip's disk", async () => {
    await writeFile(join(own, "AGENTS.md"), "\ufeffBe kind.\n");
    expect((await withFile(join(own, "AGENTS.md"))).hostTexts.instructions).toBe("Be kind.\n");
  });

  test.each([undefined, "", " "])("is none when %j is configured", async (instructionsFilePath) => {
    const { hostTexts } = await prepared(live(minimal({ config: { instructionsFilePath } })));
    expect(hostTexts).not.toHaveProperty("instructions");
  });

  test.each([
    ["missing", async () => undefined, "no such file or directory"],
    ["a folder", async (path: string) => void (await mkdir(path)), "not a regular file"],
    ["too large", (path: string) => writeFile(path, "x".repeat(512 * 1024 + 1)), "larger than 524288 bytes"],
    ["no text", (path: string) => writeFile(path, Buffer.from([0xff, 0xfe, 0x80])), "not UTF-8"],
  ])("that is unusable gives a note, and the run has none: %s", async (_, make, cause) => {
    const path = join(own, "AGENTS.md");
    await make(path);
    const { hostTexts, notes } = await withFile(path);
    expect(hostTexts.instructions).toBe("");
    expect(notes).toEqual([`instructionsFilePath not readable: ${path}: ${cause}`]);
  });

  test("with a path of any length gives a short note", async () => {
    const { notes } = await withFile(`${own}/${"x".repeat(2000)}`);
    expect(notes[0]?.length).toBe(500);
  });
});

describe("tool servers", () => {
  const withServers = (getServers: () => Data) => prepared(live(minimal(), { runtimeMcp: { getServers } }));

  test("are named as Paperclip offers them", async () => {
    const servers = [
      { name: "projects", url: "http://127.0.0.1:3190/api/mcp", token: "run", connectionId: "p" },
      { name: "docs", url: "https://mcp.example/sse", token: 5 },
      { name: 5, url: "https://x" },
      "nonsense",
    ];
    expect((await withServers(async () => servers)).hostTexts.toolServers).toEqual([
      { name: "projects", url: "http://127.0.0.1:3190/api/mcp", token: "run" },
      { name: "docs", url: "https://mcp.example/sse" },
    ]);
    const many = Array.from({ length: 70 }, (_, n) => ({ name: `n${n}`, url: "https://x" }));
    expect((await withServers(() => many)).hostTexts.toolServers.length).toBe(64);
  });

  test.each([
    ["rejects", () => Promise.reject(new Error(CANARY))],
    [
      "throws",
      () => {
        throw new Error(CANARY);
      },
    ],
    ["gives nonsense", () => 5],
  ])("of a Paperclip that does not name them give a note: it %s", async (_, getServers) => {
    const { hostTexts } = await withServers(getServers);
    expect(hostTexts.toolServers).toEqual([]);
    expect(hostTexts.notes).toEqual(["Paperclip did not name its tool servers; the agent does without"]);
  });
});

describe("skills", () => {
  const OPERATIONAL = "paperclipai/paperclip/paperclip";

  /** A skill with a folder in the company's library. */
  async function skill(key: string, text: string): Promise<Data> {
    const source = join(library, key);
    await mkdir(source, { recursive: true });
    await writeFile(join(source, "SKILL.md"), text);
    return { key, source };
  }

  async function read(offered: Data[], desiredSkills?: PaperclipHelpers["resolvePaperclipDesiredSkillNames"]) {
    const ctx = live(minimal({ config: { paperclipRuntimeSkills: offered } }));
    const { hostTexts } = await prepared(ctx, { host: { resolvePaperclipDesiredSkillNames: desiredSkills } });
    return hostTexts;
  }

  test("are those that Paperclip's own helper names, the required ones, and Paperclip's own", async () => {
    await writeFile(join(library, "one.md"), "# One");
    const offered = [
      await skill(OPERATIONAL, "\n# Paperclip\n"),
      { ...(await skill("company/required", "# Required")), required: true },
      { key: "company/one", source: join(library, "one.md"), sourceStatus: "available" },
      { ...(await skill("company/missing", "# Missing")), sourceStatus: "missing" },
      { key: "company/unreadable", source: join(library, "unreadable") },
      await skill("company/other", "# Other"),
    ];
    const desired = ["company/one", "company/missing", "company/unreadable", "company/unknown"];
    const { skills, notes } = await read([...offered, null, { key: 5 }], (config, entries) => {
      expect(config.paperclipRuntimeSkills).toHaveLength(8);
      expect(entries).toEqual(offered);
      return desired;
    });
    expect(skills).toEqual({
      [OPERATIONAL]: "# Paperclip",
      "company/required": "# Required",
      "company/one": "# One",
    });
    expect(notes).toEqual([`skill not readable: ${join(library, "unreadable")}: no such file or directory`]);
  });

  test("are all that are offered when Paperclip does not say which", async () => {
    const offered = [await skill("company/one", "# One"), await skill(OPERATIONAL, "# Paperclip")];
    const all = { "company/one": "# One", [OPERATIONAL]: "# Paperclip" };
    expect((await read(offered)).skills).toEqual(all);
    const failing = () => {
      throw new Error(CANARY);
    };
    expect(await read(offered, failing)).toMatchObject({ skills: all, notes: [] });
  });

  test("are bounded in number, the required ones first", async () => {
    const { source } = await skill("company/shared", "# Shared");
    const offered = Array.from({ length: 120 }, (_, n) => ({ key: `company/n${n}`, source }));
    const { skills, notes } = await read([...offered, await skill(OPERATIONAL, "# Paperclip")]);
    expect(Object.keys(skills)).toHaveLength(100);
    expect(skills[OPERATIONAL]).toBe("# Paperclip");
    expect(notes).toEqual(['skills from "company/n99" on are left out: the limit is 100 files and 2 MiB in all']);
  });

  test("are bounded in size", async () => {
    const { source } = await skill("company/large", "x".repeat(250 * 1024));
    const offered = Array.from({ length: 10 }, (_, n) => ({ key: `company/n${n}`, source }));
    const { skills, notes } = await read(offered);
    expect(Object.keys(skills)).toHaveLength(8);
    expect(notes[0]).toContain('from "company/n8" on');
  });
});
