import { mkdtempSync, writeFileSync } from "node:fs";
import { homedir, tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { ConfigurationError } from "../src/errors.ts";
import { settingsFrom } from "../src/settings.ts";

const CANARY = "canary-3c";
const CERTIFICATE = `-----BEGIN CERTIFICATE-----\n${CANARY}\n-----END CERTIFICATE-----`;
const KEY = CERTIFICATE.replaceAll("CERTIFICATE", "PRIVATE KEY");

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
    readableFolders: [],
    names: true,
    reconcile: true,
  });
});

test("the environment sets a value, and an empty value sets none", () => {
  const settings = settingsFrom({
    TEMPORAL_ADDRESS: " temporal:7233 ",
    TEMPORAL_NAMESPACE: "",
    TEMPORAL_TLS: "True",
    TEMPORAL_API_KEY: CANARY,
    AGENT_RUNS_TASK_QUEUE: " ",
    AGENT_RUNS_SEALING_KEY_FILE: "/keys/sealing.json",
    AGENT_RUNS_PAPERCLIP_API_URL: "https://paperclip.example/",
    AGENT_RUNS_NAMES: "off",
    AGENT_RUNS_RECONCILE: "off",
    AGENT_RUNS_PRODUCTION: "1",
    AGENT_RUNS_REPORT_AS: "opencode_k8s",
    AGENT_RUNS_READABLE_FOLDERS: "/srv/agents:/srv/skills",
  });
  expect(settings).toMatchObject({
    temporal: { address: "temporal:7233", namespace: "default", tls: {}, apiKey: CANARY },
    taskQueue: "agent-runs",
    transcriptsKeyFile: "/keys/transcripts-key.json",
    paperclipApiUrl: "https://paperclip.example/",
    names: false,
    reconcile: false,
    reportAs: "opencode_k8s",
    readableFolders: ["/srv/agents", "/srv/skills"],
  });
});

test("an agent's configuration overrides what it may, and never names a service or a file of the host", () => {
  const settings = settingsFrom(
    { AGENT_RUNS_TASK_QUEUE: "ours", AGENT_RUNS_ON_BUSY: "wait", TEMPORAL_NAMESPACE: "ours" },
    {
      ...{ taskQueue: "theirs", onBusy: "refuse", paperclipApiUrl: "http://paperclip" },
      ...{ temporalAddress: "theirs:7233", temporalNamespace: "theirs", transcriptsUrl: "http://theirs" },
      ...{
        "": "/etc/shadow",
        sealingKeyFile: "/etc/shadow",
        transcriptsKeyFile: "/etc/shadow",
        sealingKey: "{}",
      },
    },
  );
  expect(settings).toMatchObject({
    temporal: { address: "127.0.0.1:7233", namespace: "ours" },
    taskQueue: "theirs",
    onBusy: "refuse",
    paperclipApiUrl: "http://paperclip",
  });
  expect(JSON.stringify(settings)).not.toContain("shadow");
  expect(settings.sealingKey).toBeUndefined();
  expect(settings.transcriptsUrl).toBeUndefined();
});

test("every wrong setting is named at once with what is expected, and never its value", () => {
  const error = refused(
    {
      AGENT_RUNS_TASK_QEUE: CANARY,
      TEMPORAL_TLS: CANARY,
      AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL: CANARY,
      AGENT_RUNS_REPORT_AS: CANARY,
      AGENT_RUNS_READABLE_FOLDERS: `/srv/agents:${CANARY}`,
    },
    { onBusy: CANARY, taskQueue: 5, paperclipApiUrl: `http://${CANARY}@host` },
  );
  expect(error.problems.map(({ field }) => field).sort()).toEqual([
    "AGENT_RUNS_READABLE_FOLDERS",
    "AGENT_RUNS_REPORT_AS",
    "AGENT_RUNS_TASK_QEUE",
    "AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL",
    "TEMPORAL_TLS",
    "config.onBusy",
    "config.paperclipApiUrl",
    "config.taskQueue",
  ]);
  expect(error.message).toContain("AGENT_RUNS_TASK_QEUE is not a setting: check its spelling");
  expect(error.message).toContain("config.onBusy must be one of wait, refuse");
  expect(error.message).not.toContain(CANARY);
});

test("variables that Kubernetes sets after our Services are no settings", () => {
  const service = {
    AGENT_RUNS_TRANSCRIPTS_SERVICE_HOST: "10.0.0.7",
    AGENT_RUNS_TRANSCRIPTS_SERVICE_PORT_TRANSCRIPTS: "8090",
    AGENT_RUNS_TRANSCRIPTS_PORT: "tcp://10.0.0.7:8090",
    AGENT_RUNS_TRANSCRIPTS_PORT_8090_TCP_ADDR: "10.0.0.7",
  };
  expect(settingsFrom(service)).toEqual(settingsFrom({}));
  expect(() => settingsFrom({ AGENT_RUNS_TRANSCRIPTS_PORT: "8090" })).toThrow("AGENT_RUNS_TRANSCRIPTS_PORT");
});

test("settings of the worker, which may share the environment, are accepted", () => {
  const names = ["KUBECONFIG", "MAX_RUNS", "POLICY", "INHERIT_DEPLOYMENT", "INHERIT_NAMESPACE", "INHERIT_CONTAINER"];
  const environment = Object.fromEntries(names.map((name) => [`AGENT_RUNS_${name}`, "many"]));
  expect(settingsFrom(environment)).toEqual(settingsFrom({}));
});

test("the login for Temporal is read from its own variables", () => {
  const environment = {
    ...{ TEMPORAL_ADDRESS: "ours:7233", TEMPORAL_API_KEY: "key-of-ours", TEMPORAL_GRPC_META_AUTHORIZATION: "header" },
    ...{ TEMPORAL_TLS_CLIENT_CERT_DATA: CERTIFICATE, TEMPORAL_TLS_CLIENT_KEY_DATA: KEY },
    TEMPORAL_TLS_SERVER_CA_CERT_DATA: CERTIFICATE,
  };
  expect(settingsFrom(environment).temporal).toMatchObject({
    address: "ours:7233",
    apiKey: "key-of-ours",
    metadata: { authorization: "header" },
    tls: {
      clientCertPair: { crt: Buffer.from(CERTIFICATE), key: Buffer.from(KEY) },
      serverRootCACertificate: Buffer.from(CERTIFICATE),
    },
  });
});

test("an API key needs TLS, unless that is switched off", () => {
  expect(settingsFrom({ TEMPORAL_API_KEY: "key" }).temporal.tls).toBe(true);
  expect(settingsFrom({ TEMPORAL_API_KEY: "key", TEMPORAL_TLS: "FALSE" }).temporal.tls).toBe(false);
});

test("a profile of Temporal's configuration file is read, and a variable wins over it", () => {
  const file = join(mkdtempSync(join(tmpdir(), "profiles-")), "temporal.toml");
  writeFileSync(file, '[profile.prod]\naddress = "prod:7233"\nnamespace = "prod"\napi_key = "key"\n');
  const environment = { TEMPORAL_CONFIG_FILE: file, TEMPORAL_PROFILE: "prod", TEMPORAL_NAMESPACE: "mine" };
  const expected = { address: "prod:7233", namespace: "mine", tls: true, apiKey: "key" };
  expect(settingsFrom(environment).temporal).toEqual(expected);
});

test.each([
  ["TEMPORAL_ADDRESS", { TEMPORAL_ADDRESS: "https://temporal:7233" }],
  ["TEMPORAL_CONFIG_FILE", { TEMPORAL_CONFIG_FILE: "/no/such.toml" }],
  ["TEMPORAL_CONFIG_FILE", { TEMPORAL_CONFIG_FILE: import.meta.filename }],
  ["TEMPORAL_PROFILE", { TEMPORAL_PROFILE: CANARY }],
  ["TEMPORAL_TLS_CLIENT_CERT_PATH", { TEMPORAL_TLS_CLIENT_CERT_PATH: "/no/such.pem" }],
  ["TEMPORAL_TLS_CLIENT_CERT_DATA", { TEMPORAL_TLS_CLIENT_CERT_DATA: CANARY }],
  ["TEMPORAL_TLS_CLIENT_KEY_PATH", { TEMPORAL_TLS_CLIENT_CERT_DATA: CERTIFICATE }],
  [
    "TEMPORAL_TLS_CLIENT_CERT_PATH",
    { TEMPORAL_TLS_CLIENT_CERT_DATA: CERTIFICATE, TEMPORAL_TLS_CLIENT_CERT_PATH: "/x" },
  ],
  ["TEMPORAL_TLS_DISABLE_HOST_VERIFICATION", { TEMPORAL_TLS_DISABLE_HOST_VERIFICATION: "1" }],
])("a wrong %s is named before anything is started: %j", (field, environment) => {
  const error = refused(environment);
  expect(error.problems).toMatchObject([{ field }]);
  expect(error.message).not.toContain(CANARY);
});
