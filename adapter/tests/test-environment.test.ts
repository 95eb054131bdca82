import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { exportJWK, generateKeyPair } from "jose";
import { beforeEach, describe, expect, it, vi } from "vitest";
import type { EnvironmentTestResult } from "../src/paperclip.ts";
import { testEnvironment } from "../src/test-environment.ts";
import { freePort, services } from "./support/stack.ts";

const folder = mkdtempSync(join(tmpdir(), "adapter-environment-"));
const tested = (config: object = {}) =>
  testEnvironment({
    ...{ companyId: "acme", adapterType: "opencode_k8s" },
    config: { model: "anthropic/claude-sonnet-4-6", ...config },
  });
const levels = (found: EnvironmentTestResult) =>
  Object.fromEntries(found.checks.map(({ code, level }) => [code, level]));

const real = services();
beforeEach(() => {
  vi.unstubAllEnvs();
  vi.stubEnv("TEMPORAL_ADDRESS", real.server.address);
  vi.stubEnv("AGENT_RUNS_TASK_QUEUE", real.worker.queue);
  vi.stubEnv("AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL", real.worker.transcripts);
  vi.stubEnv("AGENT_RUNS_TRANSCRIPTS_KEY_FILE", real.worker.keyFile);
  vi.stubEnv("AGENT_RUNS_SEALING_KEY_FILE", real.worker.sealingKeyFile);
  vi.stubEnv("AGENT_RUNS_PAPERCLIP_API_URL", "http://paperclip.example:3100");
  vi.stubEnv("PAPERCLIP_HOME", "/paperclip/home");
});

describe("a complete environment", () => {
  it("has no errors", async () => {
    // a worker polls a moment before Temporal lists it
    const found = await vi.waitUntil(
      async () => {
        const latest = await tested();
        return levels(latest).worker_polls !== undefined && latest;
      },
      { timeout: 120_000, interval: 200 },
    );
    expect(found.checks.filter(({ level }) => level === "error")).toEqual([]);
    expect(levels(found)).toMatchObject({
      ...{ temporal_reachable: "info", worker_polls: "info", transcripts_reachable: "info" },
      ...{ sealing_key: "info", paperclip_url: "info" },
    });
  });
});

describe("a wrong environment is reported with a remedy", () => {
  it.each([
    ["temporal_unreachable", "TEMPORAL_ADDRESS", async () => `127.0.0.1:${await freePort()}`],
    ["temporal_unreachable", "TEMPORAL_NAMESPACE", async () => "unknown"],
    ["worker_missing", "AGENT_RUNS_TASK_QUEUE", async () => "unpolled-queue"],
    ["transcripts_unset", "AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL", async () => ""],
    [
      "transcripts_unreachable",
      "AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL",
      async () => `http://127.0.0.1:${await freePort()}`,
    ],
    ["settings", "AGENT_RUNS_ON_BUSY", async () => "perhaps"],
    ["settings", "AGENT_RUNS_MISSPELT", async () => "x"],
  ])("%s by %s", async (code, variable, value) => {
    vi.stubEnv(variable, await value());
    const found = await tested();
    expect(found.status).toBe("fail");
    expect(found.checks.find((each) => each.code === code)).toMatchObject({ level: "error", hint: expect.any(String) });
  });

  it("a transcript key that is not the service's", async () => {
    const file = join(folder, "other-key.json");
    writeFileSync(file, JSON.stringify({ kty: "oct", k: Buffer.alloc(32, 7).toString("base64url") }));
    vi.stubEnv("AGENT_RUNS_TRANSCRIPTS_KEY_FILE", file);
    expect(levels(await tested())).toMatchObject({ transcripts_key_refused: "error" });
  });

  it("an unusable sealing key, without quoting it", async () => {
    const file = join(folder, "broken-key.json");
    writeFileSync(file, '{"kty":"EC","d":"very-secret"}');
    vi.stubEnv("AGENT_RUNS_SEALING_KEY_FILE", file);
    const found = await tested();
    expect(levels(found)).toMatchObject({ sealing_key_unusable: "error" });
    expect(JSON.stringify(found)).not.toContain("very-secret");
  });

  it("another sealing key than the worker's", async () => {
    const { publicKey } = await generateKeyPair("ECDH-ES", { crv: "P-256", extractable: true });
    vi.stubEnv("AGENT_RUNS_SEALING_KEY", JSON.stringify(await exportJWK(publicKey)));
    const found = await tested();
    expect(levels(found)).toMatchObject({ sealing_key: "info", configuration_unchecked: "error" });
    const { message, hint } = found.checks.find(({ code }) => code === "configuration_unchecked") ?? {};
    expect(message).toMatch(/is not checked: .*sealed with a key that this worker does not hold/);
    expect(hint).toContain("sealing key");
  });
});

describe("a worker checks the agent's configuration", () => {
  it("and reports every wrong field", async () => {
    const found = await tested({ model: "no-provider", timeoutSec: -1, kubeconfig: "/root/.kube/config" });
    const named = found.checks.filter(({ code }) => code === "agent_configuration").map(({ message }) => message);
    for (const field of ["config.model", "config.timeoutSec", "config.kubeconfig"]) {
      expect(named.some((message) => message.startsWith(`${field} `))).toBe(true);
    }
    expect(found.status).toBe("fail");
  });

  it("and reports what is wrong in the field for all other settings by its path", async () => {
    const named = async (advanced: string) => {
      const { checks } = await tested({ advanced });
      return checks.filter(({ code }) => code === "agent_configuration").map(({ message }) => message);
    };
    expect((await named("resources: {limits: {memory: lots}}\nmaxSteps: many\ntaskQueue: other")).sort()).toEqual([
      expect.stringMatching(/^config\.advanced\.maxSteps must be a whole number/),
      expect.stringMatching(/^config\.advanced\.resources\.limits\.memory must be a Kubernetes quantity/),
      "config.advanced.taskQueue is not read here: set config.taskQueue itself",
    ]);
    expect(await named("resources: {limits: {memory: 8Gi}}")).toEqual([]);
  });

  it("and reports wrong providers in Paperclip's environment by the name of the variable", async () => {
    vi.stubEnv("PAPERCLIP_OPENCODE_PROVIDERS", "no JSON");
    const found = (await tested()).checks.filter(({ code }) => code === "agent_configuration");
    expect(found.map(({ message }) => message)).toEqual([
      expect.stringMatching(/^PAPERCLIP_OPENCODE_PROVIDERS must be a JSON object/),
    ]);
  });

  it("and reports a home of Paperclip that is not on the data volume", async () => {
    vi.stubEnv("PAPERCLIP_HOME", "/srv");
    const [found] = (await tested({ model: "fake/model" })).checks.filter(({ level }) => level === "error");
    expect(found?.message).toMatch(
      /^context\.paperclipWorkspace\.cwd must be below \/paperclip.*AGENT_RUNS_WORKSPACE_STORE.*ephemeral/,
    );
    expect(levels(await tested({ model: "fake/model", workspace: "ephemeral" })).agent_configuration).toBeUndefined();
  });

  it("and reports an address of Paperclip that pods cannot reach", async () => {
    vi.stubEnv("AGENT_RUNS_PAPERCLIP_API_URL", undefined);
    vi.stubEnv("PAPERCLIP_API_URL", "http://127.0.0.1:3100");
    expect(levels(await tested())).toMatchObject({ paperclip_url: "warn" });
  });
});

it("a configuration that is no object gives a failed test", async () => {
  const context = { companyId: "acme", adapterType: "opencode_k8s", config: null as never };
  expect((await testEnvironment(context)).status).toBe("fail");
});
