import { homedir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { ConfigurationError, settingsFrom } from "../src/settings.ts";

const CANARY = "canary-3c";

function refused(environment: NodeJS.ProcessEnv, config: Record<string, unknown> = {}): ConfigurationError {
  try {
    settingsFrom(environment, config);
  } catch (error) {
    if (error instanceof ConfigurationError) return error;
    throw error;
  }
  throw new Error("was taken");
}

test("without any setting everything has the worker's defaults", () => {
  expect(JSON.parse(JSON.stringify(settingsFrom({ PATH: "/bin" })))).toEqual({
    temporal: { address: "127.0.0.1:7233", namespace: "default", tls: false },
    taskQueue: "agent-runs",
    transcriptsKeyFile: join(homedir(), ".agent-runs", "transcripts-key.json"),
    sealingKeyFile: join(homedir(), ".agent-runs", "sealing-key.json"),
    onBusy: "wait",
    reportAs: "opencode_local",
    logFormat: "auto",
    reconcile: true,
    production: false,
  });
});

test("the environment sets a value, and an empty value sets none", () => {
  const settings = settingsFrom({
    AGENT_RUNS_TEMPORAL_ADDRESS: " temporal:7233 ",
    AGENT_RUNS_TEMPORAL_TLS: "Yes",
    AGENT_RUNS_TEMPORAL_API_KEY: CANARY,
    AGENT_RUNS_TASK_QUEUE: " ",
    AGENT_RUNS_SEALING_KEY_FILE: "/keys/sealing.json",
    AGENT_RUNS_PAPERCLIP_API_URL: "https://paperclip.example/",
    AGENT_RUNS_RECONCILE: "off",
    AGENT_RUNS_PRODUCTION: "1",
    AGENT_RUNS_REPORT_AS: "opencode_k8s",
  });
  expect(settings).toMatchObject({
    temporal: { address: "temporal:7233", tls: true, apiKey: CANARY },
    taskQueue: "agent-runs",
    transcriptsKeyFile: "/keys/transcripts-key.json",
    paperclipApiUrl: "https://paperclip.example/",
    reconcile: false,
    production: true,
    reportAs: "opencode_k8s",
  });
});

test("an agent's configuration overrides what it may, and never names a file of the host", () => {
  const settings = settingsFrom(
    { AGENT_RUNS_TASK_QUEUE: "ours", AGENT_RUNS_ON_BUSY: "wait", AGENT_RUNS_TEMPORAL_NAMESPACE: "ours" },
    {
      ...{ temporalAddress: "theirs:7233", temporalNamespace: "", taskQueue: "theirs", onBusy: "refuse" },
      ...{ transcriptsUrl: "http://theirs", paperclipApiUrl: "http://paperclip" },
      ...{ sealingKeyFile: "/etc/shadow", transcriptsKeyFile: "/etc/shadow", sealingKey: "{}", production: "true" },
    },
  );
  expect(settings).toMatchObject({
    temporal: { address: "theirs:7233", namespace: "ours" },
    taskQueue: "theirs",
    onBusy: "refuse",
    transcriptsUrl: "http://theirs",
    paperclipApiUrl: "http://paperclip",
    production: false,
  });
  expect(JSON.stringify(settings)).not.toContain("shadow");
  expect(settings.sealingKey).toBeUndefined();
});

test("every wrong setting is named at once with what is expected, and never its value", () => {
  const error = refused(
    {
      AGENT_RUNS_TEMPORAL_ADRESS: CANARY,
      AGENT_RUNS_TEMPORAL_TLS: CANARY,
      AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL: CANARY,
      AGENT_RUNS_REPORT_AS: CANARY,
    },
    { onBusy: CANARY, taskQueue: 5, paperclipApiUrl: `http://${CANARY}@host` },
  );
  expect(error.fields.sort()).toEqual([
    "AGENT_RUNS_REPORT_AS",
    "AGENT_RUNS_TEMPORAL_ADRESS",
    "AGENT_RUNS_TEMPORAL_TLS",
    "AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL",
    "config.onBusy",
    "config.paperclipApiUrl",
    "config.taskQueue",
  ]);
  expect(error.message).toContain("AGENT_RUNS_TEMPORAL_ADRESS is not a setting: check its spelling");
  expect(error.message).toContain("config.onBusy must be one of wait, refuse");
  expect(error.message).not.toContain(CANARY);
});

test("settings of the worker, which may share the environment, are accepted", () => {
  expect(settingsFrom({ AGENT_RUNS_KUBECONFIG: "/x", AGENT_RUNS_MAX_RUNS: "many" })).toEqual(settingsFrom({}));
});

test("the API key is not sent to another Temporal that an agent names", () => {
  const environment = { AGENT_RUNS_TEMPORAL_ADDRESS: "ours:7233", AGENT_RUNS_TEMPORAL_API_KEY: "key-of-ours" };
  expect(settingsFrom(environment, { temporalAddress: "theirs:7233" }).temporal.apiKey).toBeUndefined();
  expect(settingsFrom(environment, { temporalAddress: "ours:7233" }).temporal.apiKey).toBe("key-of-ours");
  expect(settingsFrom(environment, { temporalAddress: " " }).temporal.apiKey).toBe("key-of-ours");
});
