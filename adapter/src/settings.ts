/**
 * The plugin's settings: `AGENT_RUNS_*` and `TEMPORAL_*` of Paperclip's own process, with the same names and defaults as
 * the worker's.
 *
 * An agent's configuration may name another Temporal, queue or transcript service, never a file of the host: whoever may
 * edit an agent must not choose what Paperclip's process reads. An unknown variable with our prefix is taken for a
 * misspelling and refused.
 */
import { homedir } from "node:os";
import { dirname, join } from "node:path";
import type { JsonObject } from "./paperclip.ts";
import { ADDRESS_REMEDY, isAddress, type TemporalServer, temporalServer, withoutLogin } from "./temporal-server.ts";

const PREFIX = "AGENT_RUNS_";
/** A type of its own, or that of Paperclip's OpenCode adapter, which this one then replaces. The first is the default. */
const ADAPTER_TYPES = ["opencode_k8s", "opencode_local"] as const;
export type AdapterType = (typeof ADAPTER_TYPES)[number];

/** The type under which Paperclip loads this adapter; a wrong setting is refused elsewhere. */
export function adapterTypeIn(environment: NodeJS.ProcessEnv): AdapterType {
  const chosen = environment[`${PREFIX}ADAPTER_TYPE`]?.trim();
  return ADAPTER_TYPES.find((type) => type === chosen) ?? ADAPTER_TYPES[0];
}

/** The settings of this plugin. They hold secrets and are never logged. */
export interface Settings {
  readonly temporal: TemporalServer;
  readonly taskQueue: string;
  /** Temporal's Web UI, for links. */
  readonly webUi?: string;
  /** Base URL of the transcript service. */
  readonly transcriptsUrl?: string;
  /** JWK (kty oct) that signs the transcript service's tokens; it must be the service's own. */
  readonly transcriptsKeyFile: string;
  /** JWK or JWK set of the sealing key; the public half is enough. */
  readonly sealingKeyFile: string;
  /** The same as text; it has priority over the file. */
  readonly sealingKey?: string;
  /** Paperclip's address as pods reach it. */
  readonly paperclipApiUrl?: string;
  /** What to do while another task's run has the agent. */
  readonly onBusy: "wait" | "refuse";
  /** The type under which Paperclip loads this adapter. */
  readonly adapterType: AdapterType;
  /** The adapter type that an invocation is reported as; some of Paperclip's behaviour depends on it. */
  readonly reportAs: "opencode_local" | "opencode_k8s";
  /** How a run's log is written; `auto` depends on the Paperclip, see `logFormatFor`. */
  readonly logFormat: "auto" | "json" | "text";
  /** For the reconciler, where Paperclip requires a login. */
  readonly boardApiKey?: string;
  /** Whether the reconciler runs. */
  readonly reconcile: boolean;
  /** In production no key is ever created. */
  readonly production: boolean;
}

/** A setting is unknown or wrong: one sentence per field with what is expected, never its value. */
export class ConfigurationError extends Error {
  override readonly name: string = "ConfigurationError";
  readonly code = "configuration_error";
  readonly fields: string[];

  constructor(problems: readonly { field: string; remedy: string }[]) {
    super(problems.map(({ field, remedy }) => `${field} ${remedy}`).join("; "));
    this.fields = problems.map(({ field }) => field);
  }
}

/** Fields of an agent's configuration that override the environment, and the variables of ours that they override. */
const PER_AGENT: Readonly<Record<string, string>> = {
  taskQueue: "TASK_QUEUE",
  transcriptsUrl: "TRANSCRIPTS_PUBLIC_URL",
  paperclipApiUrl: "PAPERCLIP_API_URL",
  onBusy: "ON_BUSY",
};

const PLUGIN_SETTINGS = [
  ...["TASK_QUEUE", "WEB_UI", "TRANSCRIPTS_PUBLIC_URL", "TRANSCRIPTS_KEY_FILE"],
  ...["SEALING_KEY_FILE", "SEALING_KEY", "PAPERCLIP_API_URL"],
  ...["ON_BUSY", "ADAPTER_TYPE", "REPORT_AS", "RUN_LOG_FORMAT", "BOARD_API_KEY", "RECONCILE", "PRODUCTION"],
];
/** Settings of the worker and the command line, which may share an environment with Paperclip. */
const OTHER_SETTINGS = [
  ...["KUBECONFIG", "KUBE_CONTEXT", "NAMESPACE", "IMAGE", "INIT_IMAGE", "API_PROXY_IMAGE", "DATA_CLAIM", "DATA_ROOT"],
  ...["INHERIT_ENV", "OPENCODE_CONFIG", "OPENCODE", "MAX_RUNS", "TRANSCRIPTS_URL", "TRANSCRIPTS_LISTEN"],
  ...["TRANSCRIPT_RETENTION_DAYS", "HEALTH_LISTEN", "METRICS_LISTEN"],
];

/** Every variable with our prefix that some part of the project reads. */
const KNOWN_SETTINGS: ReadonlySet<string> = new Set(
  [...PLUGIN_SETTINGS, ...OTHER_SETTINGS].map((name) => PREFIX + name),
);

/**
 * The settings of Paperclip's process, overridden by this agent's configuration.
 *
 * @param environment of Paperclip's process; only names with our prefix and Temporal's are read.
 * @param config of one agent; undefined: without an agent.
 * @throws ConfigurationError naming every unknown or wrong setting.
 */
export function settingsFrom(environment: NodeJS.ProcessEnv, config: JsonObject = {}): Settings {
  const read = new SettingsReader(environment, config);
  const sealingKeyFile = read.text("SEALING_KEY_FILE") ?? join(homedir(), ".agent-runs", "sealing-key.json");
  const settings: Settings = {
    temporal: read.temporal(),
    taskQueue: read.text("TASK_QUEUE") ?? "agent-runs",
    webUi: read.text("WEB_UI"),
    transcriptsUrl: read.url("TRANSCRIPTS_PUBLIC_URL"),
    transcriptsKeyFile: read.text("TRANSCRIPTS_KEY_FILE") ?? join(dirname(sealingKeyFile), "transcripts-key.json"),
    sealingKeyFile,
    sealingKey: read.text("SEALING_KEY"),
    paperclipApiUrl: read.url("PAPERCLIP_API_URL"),
    onBusy: read.choice("ON_BUSY", ["wait", "refuse"]),
    adapterType: read.choice("ADAPTER_TYPE", ADAPTER_TYPES),
    reportAs: read.choice("REPORT_AS", ["opencode_local", "opencode_k8s"]),
    logFormat: read.choice("RUN_LOG_FORMAT", ["auto", "json", "text"]),
    boardApiKey: read.text("BOARD_API_KEY"),
    reconcile: read.flag("RECONCILE", true),
    production: read.flag("PRODUCTION", false),
  };
  read.throwProblems();
  return settings;
}

const ABSOLUTE_URL =
  "must be an absolute http:// or https:// URL without a login, query or fragment, such as https://paperclip.example";

/** Whether a request path can be appended to `address`: http(s), a host, no login, query or fragment. */
function isAbsoluteUrl(address: string): boolean {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what is refused
  if (/[\s\x00-\x1f\x7f?#\\]/.test(address) || !/^https?:\/\/[^/@]+(?:\/|$)/i.test(address)) return false;
  return URL.canParse(address) && new URL(address).port !== "0";
}

const YES = ["1", "on", "t", "true", "y", "yes"];
const NO = ["0", "off", "f", "false", "n", "no"];

/** Reads single settings and collects what is wrong with them. */
class SettingsReader {
  private readonly environment: NodeJS.ProcessEnv;
  private readonly config: JsonObject;
  private readonly problems: { field: string; remedy: string }[];

  constructor(environment: NodeJS.ProcessEnv, config: JsonObject) {
    this.environment = environment;
    this.config = config;
    const unknown = Object.keys(environment).filter((name) => name.startsWith(PREFIX) && !KNOWN_SETTINGS.has(name));
    this.problems = unknown.sort().map((field) => ({ field, remedy: "is not a setting: check its spelling" }));
  }

  /** A text; an empty one counts as absent, because forms and templates save untouched fields so. */
  text(name: string): string | undefined {
    const { field, value } = this.lookUp(name);
    if (value === undefined || value === null) return undefined;
    if (typeof value !== "string") return this.addProblem(field, "must be text");
    return value.trim() || undefined;
  }

  /** The configured server, or the one that the agent's configuration names instead. */
  temporal(): TemporalServer {
    const configured = temporalServer(this.environment, ({ field, remedy }) => this.addProblem(field, remedy));
    const address = this.ownText("temporalAddress") ?? configured.address;
    if (!isAddress(address)) this.addProblem("config.temporalAddress", ADDRESS_REMEDY);
    const server = address === configured.address ? configured : withoutLogin(configured, address);
    return { ...server, namespace: this.ownText("temporalNamespace") ?? server.namespace };
  }

  flag(name: string, fallback: boolean): boolean {
    const word = this.text(name)?.toLowerCase();
    if (word === undefined) return fallback;
    if (!YES.includes(word) && !NO.includes(word)) this.addProblem(this.lookUp(name).field, "must be true or false");
    return YES.includes(word);
  }

  url(name: string): string | undefined {
    const address = this.text(name);
    if (address === undefined || isAbsoluteUrl(address)) return address;
    return this.addProblem(this.lookUp(name).field, ABSOLUTE_URL);
  }

  /** One of `choices`, the first of them without a setting. */
  choice<const T extends string>(name: string, choices: readonly [T, ...T[]]): T {
    const value = this.text(name);
    const chosen = choices.find((choice) => choice === value);
    if (value !== undefined && chosen === undefined) {
      this.addProblem(this.lookUp(name).field, `must be one of ${choices.join(", ")}`);
    }
    return chosen ?? choices[0];
  }

  /** A text that only the agent's configuration can set here. */
  private ownText(key: string): string | undefined {
    const value = Object.hasOwn(this.config, key) ? this.config[key] : undefined;
    if (value === undefined || value === null) return undefined;
    if (typeof value !== "string") return this.addProblem(`config.${key}`, "must be text");
    return value.trim() || undefined;
  }

  throwProblems(): void {
    if (this.problems.length > 0) throw new ConfigurationError(this.problems);
  }

  private lookUp(name: string): { field: string; value: unknown } {
    const key = Object.keys(PER_AGENT).find((key) => PER_AGENT[key] === name);
    const value = key !== undefined && Object.hasOwn(this.config, key) ? this.config[key] : undefined;
    const isSet = typeof value === "string" ? value.trim() !== "" : value !== undefined && value !== null;
    return isSet ? { field: `config.${key}`, value } : { field: PREFIX + name, value: this.environment[PREFIX + name] };
  }

  private addProblem(field: string, remedy: string): undefined {
    if (!this.problems.some((problem) => problem.field === field)) this.problems.push({ field, remedy });
    return undefined;
  }
}
