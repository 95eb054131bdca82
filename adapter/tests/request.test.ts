import { mkdir, mkdtemp, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { beforeEach, describe, expect, test } from "vitest";
import type { AdapterExecutionContext } from "../src/paperclip.ts";
import type { PaperclipHelpers } from "../src/paperclip-helpers.ts";
import { apiUrl } from "../src/request/api-url.ts";
import { InvalidRequest, type Prepared, prepare, sealToken } from "../src/request.ts";
import { settingsFrom } from "../src/settings.ts";
import { opened, sealer } from "./support/sealed-fields.ts";
import { captured, type Data, minimal } from "./support/vectors.ts";

const CANARY = "canary-5e1f";
const HOST: PaperclipHelpers = {
  renderWakePrompt: (wake, options) => `wake ${(wake as Data).reason} ${JSON.stringify(options)}`,
  isRecoveryWake: (wake) => Boolean((wake as Data)?.recovery),
  promptTemplate: "You are {{agent.id}} of {{companyId}}.",
  conversationTemplate: "A conversation.",
};

let home: string;
const environment = (more: NodeJS.ProcessEnv = {}): NodeJS.ProcessEnv => ({ PAPERCLIP_HOME: home, ...more });

beforeEach(async () => {
  home = await mkdtemp(join(tmpdir(), "paperclip-"));
});

/** A context as Paperclip passes it: captured data with functions and foreign objects. */
function live(data: Data, more: Partial<AdapterExecutionContext> = {}): AdapterExecutionContext {
  return { ...data, onLog: async () => undefined, runtimeMcp: { getServers: () => [] }, ...more };
}

interface Options {
  readonly host?: PaperclipHelpers;
  readonly env?: NodeJS.ProcessEnv;
  readonly settings?: NodeJS.ProcessEnv;
}

async function prepared(ctx: AdapterExecutionContext, { host = HOST, env, settings = {} }: Options = {}) {
  const result = await prepare(ctx, settingsFrom(settings, ctx.config), await sealer(), host, environment(env));
  return { ...result, ...(await contents(result)) };
}

async function contents({ request }: Prepared): Promise<{ secrets: Data; source: Data }> {
  const [secrets, prompt] = await Promise.all([opened(request.sealedSecrets), opened(request.sealedPrompt)]);
  return { secrets: secrets.content, source: prompt.content };
}

describe("texts", () => {
  test("the wake has Paperclip's prose for a resumed session and for a fresh one", async () => {
    const { source } = await prepared(live(captured("ctx-1-first-wake-no-session.json")));
    expect(source.wake).toEqual({
      fresh: 'wake issue_assigned {"conversationMode":false,"suppressIssueDescription":true,"resumedSession":false}',
      resumed: 'wake issue_assigned {"conversationMode":false,"suppressIssueDescription":true,"resumedSession":true}',
    });
  });

  test("without Paperclip's renderer, or when it fails, the wake has no prose", async () => {
    const ctx = live(captured("ctx-1-first-wake-no-session.json"));
    expect((await prepared(ctx, { host: {} })).source.wake).toBeUndefined();
    const broken: PaperclipHelpers = {
      renderWakePrompt: () => {
        throw new Error(CANARY);
      },
    };
    const { source, notes } = await prepared(ctx, { host: broken });
    expect(source.wake).toBeUndefined();
    expect(notes.join()).toContain("renderer failed");
    expect(notes.join()).not.toContain(CANARY);
  });

  test("an agent without a template of its own gets Paperclip's template for the mode", async () => {
    const template = async (data: Data, host = HOST) => (await prepared(live(data), { host })).source.promptTemplate;
    expect(await template(minimal())).toBe(HOST.promptTemplate);
    expect(await template(minimal({ promptTemplate: "Mine." }))).toBe("Mine.");
    expect(await template({ ...minimal(), context: { conversationMode: true } })).toBe(HOST.conversationTemplate);
    expect(await template(minimal(), {})).toBeUndefined();
  });

  test("a wake that asks for a repair gets no heartbeat", async () => {
    const ctx = live({ ...minimal(), context: { paperclipWake: { reason: "r", recovery: { cause: "x" } } } });
    const { prompt, promptMetrics } = await prepared(ctx);
    expect(promptMetrics.heartbeatPromptChars).toBe(0);
    expect(prompt.fresh).not.toContain("You are");
  });

  test("instructions and skills are read from Paperclip's disk", async () => {
    await mkdir(join(home, "skills", "one"), { recursive: true });
    await writeFile(join(home, "AGENTS.md"), "\ufeffBe kind.\n");
    await writeFile(join(home, "skills", "one", "SKILL.md"), "\n# One\n");
    await writeFile(join(home, "skills", "two.md"), "# Two");
    const config = {
      instructionsFilePath: join(home, "AGENTS.md"),
      paperclipRuntimeSkills: [
        { key: "paperclipai/paperclip/paperclip", source: join(home, "skills", "one"), sourceStatus: "available" },
        { key: "company/two", source: join(home, "skills", "two.md") },
        { key: "company/three", source: join(home, "skills", "three") },
        { key: "company/four", source: join(home, "skills", "one"), sourceStatus: "missing" },
        { key: "company/five", source: join(home, "skills", "one") },
      ],
      paperclipSkillSync: { desiredSkills: ["two", "three", "four", "six"] },
    };
    const { source, request, notes, prompt, promptMetrics } = await prepared(live(minimal(config)));
    expect(source.instructions).toBe("Be kind.\n");
    expect(source.skills).toEqual(["# One", "# Two"]);
    expect(notes.slice(0, 3)).toEqual([
      'Skill "company/four" is left out: Paperclip reports that its source is missing.',
      'Desired skill "six" is not available from the Paperclip skills directory.',
      `skill not readable: ${join(home, "skills", "three")}: No such file or directory`,
    ]);
    expect(request.notes).toEqual(notes.slice(0, 3));
    expect(prompt.fresh).toBe(
      `Be kind.\n\n(These instructions were read from ${home}/AGENTS.md; relative paths in them start at ${home}.)\n\n` +
        "# One\n\n---\n\n# Two\n\nYou are agent-1 of company-1.",
    );
    expect(promptMetrics).toMatchObject({ skillsBundleChars: 17, heartbeatPromptChars: 29, wakePromptChars: 0 });
  });

  test("instructions that cannot be read give a note, and the request is prepared", async () => {
    const { source, notes } = await prepared(live(minimal({ instructionsFilePath: join(home, "AGENTS.md") })));
    expect(source.instructions).toBe("");
    expect(notes[0]).toBe(`instructionsFilePath not readable: ${join(home, "AGENTS.md")}: No such file or directory`);
  });

  test.each(["file", "folder"])("a link that leads out of Paperclip's home is not followed: a %s", async (kind) => {
    const outside = await mkdtemp(join(tmpdir(), "outside-"));
    await writeFile(join(outside, "AGENTS.md"), CANARY);
    const place = join(home, "agent");
    if (kind === "folder") await symlink(outside, place);
    else {
      await mkdir(place);
      await symlink(join(outside, "AGENTS.md"), join(place, "AGENTS.md"));
    }
    const { source, notes } = await prepared(live(minimal({ instructionsFilePath: join(place, "AGENTS.md") })));
    expect(source.instructions).toBe("");
    expect(notes[0]).toContain(`leads out of ${home}`);
  });

  test("instructions outside Paperclip's home are read from their own folder", async () => {
    const bundle = await mkdtemp(join(tmpdir(), "bundle-"));
    await writeFile(join(bundle, "AGENTS.md"), "Elsewhere.");
    const { source } = await prepared(live(minimal({ instructionsFilePath: join(bundle, "AGENTS.md") })));
    expect(source.instructions).toBe("Elsewhere.");
  });

  test.each([
    ["a folder", async (path: string) => void (await mkdir(path)), "not a regular file"],
    ["too large", (path: string) => writeFile(path, "x".repeat(512 * 1024 + 1)), "larger than 524288 bytes"],
    ["no text", (path: string) => writeFile(path, Buffer.from([0xff, 0xfe, 0x80])), "not UTF-8"],
  ])("an unusable instructions file gives a note: %s", async (_, make, expected) => {
    await make(join(home, "AGENTS.md"));
    const { notes } = await prepared(live(minimal({ instructionsFilePath: join(home, "AGENTS.md") })));
    expect(notes[0]).toContain(expected);
  });
});

describe("Paperclip's address", () => {
  const URLS = "http://127.0.0.1:3100";
  const url = async (options: Options, config: Data = {}) => {
    const { request, notes } = await prepared(live(minimal(config)), options);
    return { url: request.config.paperclipApiUrl, notes };
  };

  test("the agent's own comes first, then the plugin's, then Paperclip's unless it is a loopback address", async () => {
    const ours = { AGENT_RUNS_PAPERCLIP_API_URL: "http://ours" };
    const theirs = { PAPERCLIP_API_URL: "http://theirs" };
    expect((await url({ settings: ours, env: theirs }, { paperclipApiUrl: "http://agent" })).url).toBe("http://agent");
    expect((await url({ settings: ours, env: theirs })).url).toBe("http://ours");
    expect((await url({ env: theirs })).url).toBe("http://theirs");
    expect((await url({ env: { PAPERCLIP_RUNTIME_API_URL: "http://runtime" } })).url).toBe("http://runtime");
  });

  test.each([URLS, "http://localhost:3100", "http://[::1]:3100", "http://0.0.0.0:1", "http://paperclip.localhost"])(
    "a loopback address is left out, with a note: %s",
    async (address) => {
      const found = await url({ env: { PAPERCLIP_API_URL: address } });
      expect(found.url).toBeUndefined();
      expect(found.notes[0]).toContain("which in a pod is the pod itself: set AGENT_RUNS_PAPERCLIP_API_URL");
    },
  );

  test("a missing address gives a note", () => {
    expect(apiUrl(settingsFrom({}), {}, {}).note).toContain("agents get no PAPERCLIP_API_URL and cannot report");
  });

  test("a wrong address is refused by its field", async () => {
    const ctx = live(minimal({ paperclipApiUrl: "paperclip" }));
    const refused = prepare(ctx, settingsFrom({}), await sealer(), HOST, environment());
    await expect(refused).rejects.toThrow(/^config.paperclipApiUrl must be an absolute http:\/\/ or https:\/\/ URL/);
  });
});

describe("tools", () => {
  const servers = [
    { name: "Paperclip projects", url: "http://127.0.0.1:3190/api/mcp/project-tools", token: "run", connectionId: "p" },
    { name: "Paperclip projects", url: "http://localhost:3190/gateway?x=1", token: `${CANARY}-gateway` },
    { name: "docs", url: "https://mcp.example/sse", token: `${CANARY}-docs` },
    { name: "***", url: "https://open.example/" },
    { name: 5, url: "https://x" },
    "nonsense",
  ];

  test("tool servers are sealed, at addresses that pods reach, together with the agent's own", async () => {
    const ctx = live(
      { ...minimal({ mcpServers: { docs: { url: "https://mine" } } }), authToken: "run" },
      { runtimeMcp: { getServers: async () => servers as never } },
    );
    const { secrets, request } = await prepared(ctx);
    expect(secrets.mcpServers).toEqual({
      docs: { url: "https://mine" },
      "paperclip-projects": {
        type: "remote",
        url: "{env:PAPERCLIP_API_URL}/api/mcp/project-tools",
        headers: { Authorization: "Bearer {env:PAPERCLIP_API_KEY}" },
      },
      "paperclip-projects-2": {
        type: "remote",
        url: "{env:PAPERCLIP_API_URL}/gateway?x=1",
        headers: { Authorization: `Bearer ${CANARY}-gateway` },
      },
      "docs-2": {
        type: "remote",
        url: "https://mcp.example/sse",
        headers: { Authorization: `Bearer ${CANARY}-docs` },
      },
      paperclip: { type: "remote", url: "https://open.example/" },
    });
    expect(JSON.stringify(request)).not.toContain(CANARY);
  });

  test.each([
    ["throws", () => Promise.reject(new Error(CANARY))],
    ["gives nonsense", () => Promise.resolve("nonsense" as never)],
  ])("a Paperclip that does not name its servers gives a note: it %s", async (_, getServers) => {
    const { secrets, notes } = await prepared(live(minimal(), { runtimeMcp: { getServers } }));
    expect(secrets.mcpServers).toEqual({});
    expect(notes[0]).toBe("Paperclip did not name its tool servers; the agent does without");
  });

  test("connection tools are variables with addresses that pods reach", async () => {
    const ctx = live(captured("ctx-4-project-workspace-and-secret.json"));
    const { secrets } = await prepared(ctx, {
      env: { PAPERCLIP_API_URL: "http://127.0.0.1:3190" },
      settings: { AGENT_RUNS_PAPERCLIP_API_URL: "https://paperclip.example/base/" },
    });
    expect(secrets.paperclipEnv).toMatchObject({
      PAPERCLIP_RUNTIME_TOOLS_MCP_URL: "https://paperclip.example/base/mcp/runtime-tools",
      PAPERCLIP_RUNTIME_TOOLS_CONNECTIONS_SEARCH_URL: "https://paperclip.example/base/runtime-tools/connections/search",
      PAPERCLIP_RUNTIME_TOOLS_TOKEN: "<REDACTED_JWT>",
      PAPERCLIP_RUNTIME_TOOLS_AVAILABLE: "connections_search,connection_request",
    });
  });
});

test("the environment for Paperclip's logs has the agent's variables by name only", async () => {
  const ctx = live({ ...minimal({ env: { API_KEY: CANARY } }), context: { taskId: "task-1", wakeReason: "assigned" } });
  const { environmentForLogs, task } = await prepared(ctx, { env: { PAPERCLIP_API_URL: "http://paperclip" } });
  expect(environmentForLogs).toEqual({
    API_KEY: "***REDACTED***",
    PAPERCLIP_AGENT_ID: "agent-1",
    PAPERCLIP_COMPANY_ID: "company-1",
    PAPERCLIP_RUN_ID: "run-1",
    PAPERCLIP_API_URL: "http://paperclip",
    PAPERCLIP_TASK_ID: "task-1",
    PAPERCLIP_WAKE_REASON: "assigned",
  });
  expect(task).toBe("task-1");
});

test("the task of a wake is the issue, else Paperclip's task key, else none", async () => {
  const task = async (data: Data) => (await prepared(live(data))).task;
  expect(await task({ ...minimal(), context: { issueId: "issue-1" }, runtime: { taskKey: "key" } })).toBe("issue-1");
  expect(await task({ ...minimal(), runtime: { taskKey: "key" } })).toBe("key");
  expect(await task(minimal())).toBeNull();
});

test("no secret is outside the sealed fields", async () => {
  const data = captured("ctx-4-project-workspace-and-secret.json");
  data.authToken = CANARY;
  data.config.env.MY_SECRET = CANARY;
  data.config.mcpServers = { docs: { url: `https://${CANARY}@mcp`, headers: { Authorization: CANARY } } };
  data.runtimeTools.bearerToken = CANARY;
  data.context.paperclipSecrets.manifest[0].value = CANARY;
  data.context.paperclipWorkspace.repoUrl = `https://ada:${CANARY}@git.example/repo.git`;
  const tracer = { startupTraceContext: { tracer: { secret: CANARY } } };
  const { request, notes, environmentForLogs, prompt } = await prepared(live({ ...data, ...tracer }));
  expect(JSON.stringify([request, notes, environmentForLogs, prompt])).not.toContain(CANARY);
});

test("a join brings the new run's tokens and nothing else", async () => {
  const sealed = await sealToken(await sealer(), "run-2", "token", "tools");
  expect(await opened(sealed)).toMatchObject({
    header: { typ: "agent-runs.secrets" },
    content: { runId: "run-2", authToken: "token", paperclipEnv: { PAPERCLIP_RUNTIME_TOOLS_TOKEN: "tools" } },
  });
  const bare = await sealToken(await sealer(), "run-2", undefined);
  expect((await opened(bare)).content).toEqual({ runId: "run-2" });
});

test.each([["nonsense" as never], [null as never], [[] as never]])(
  "a configuration of another type is refused",
  async (config) => {
    const ctx = live({ ...minimal(), config });
    const refused = prepare(ctx, settingsFrom({}), await sealer(), HOST, environment());
    await expect(refused).rejects.toThrow(InvalidRequest);
  },
);
