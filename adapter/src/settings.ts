/**
 * Where everything is: `AGENT_RUNS_*` of Paperclip's own process, the same names and defaults as on the worker's side.
 *
 * An agent's configuration may name another Temporal, queue or transcript service, never a file of the host: whoever may
 * edit an agent must not choose what Paperclip's process reads. An unknown variable with our prefix is a misspelt one
 * and is refused.
 */
import { homedir } from "node:os";
import { dirname, join } from "node:path";
import type { JsonObject } from "./paperclip.ts";
import { ABSOLUTE_URL, isAbsoluteUrl } from "./request/context.ts";

const PREFIX = "AGENT_RUNS_";

/** What this plugin needs to know. Holds secrets: never logged. */
export interface Settings {
  readonly temporal: { address: string; namespace: string; tls: boolean; apiKey?: string };
  readonly taskQueue: string;
  /** Temporal's Web UI, for links. */
  readonly webUi?: string;
  /** Base URL of the transcript service. */
  readonly transcriptsUrl?: string;
  /** JWK (kty oct) that signs the transcript service's tokens; it must be the service's own. */
  readonly transcriptsKeyFile: string;
  /** JWK or JWK set of the sealing key; the public half is enough. */
  readonly sealingKeyFile: string;
  /** The same as text; counts before the file. */
  readonly sealingKey?: string;
  /** Paperclip as pods reach it. */
  readonly paperclipApiUrl?: string;
  /** What to do while another task's run has the agent. */
  readonly onBusy: "wait" | "refuse";
  /** The type under which Paperclip is told of an invocation; some of its behaviour depends on it. */
  readonly reportAs: "opencode_local" | "opencode_k8s";
  /** For the reconciler, where Paperclip wants a login. */
  readonly boardApiKey?: string;
  readonly reconcile: boolean;
  /** No key is ever made. */
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

/** Fields of an agent's configuration that win over the environment, and the variables they stand for. */
export const PER_AGENT: Readonly<Record<string, string>> = {
  temporalAddress: "TEMPORAL_ADDRESS",
  temporalNamespace: "TEMPORAL_NAMESPACE",
  taskQueue: "TASK_QUEUE",
  transcriptsUrl: "TRANSCRIPTS_PUBLIC_URL",
  paperclipApiUrl: "PAPERCLIP_API_URL",
  onBusy: "ON_BUSY",
};

const OURS = [
  ...["TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE", "TEMPORAL_TLS", "TEMPORAL_API_KEY", "TASK_QUEUE", "WEB_UI"],
  ...["TRANSCRIPTS_PUBLIC_URL", "TRANSCRIPTS_KEY_FILE", "SEALING_KEY_FILE", "SEALING_KEY", "PAPERCLIP_API_URL"],
  ...["ON_BUSY", "REPORT_AS", "BOARD_API_KEY", "RECONCILE", "PRODUCTION"],
];
/** Read by the worker and the command line, which may share an environment with Paperclip. */
const THEIRS = [
  ...["KUBECONFIG", "KUBE_CONTEXT", "NAMESPACE", "IMAGE", "INIT_IMAGE", "API_PROXY_IMAGE", "DATA_CLAIM", "DATA_ROOT"],
  ...["INHERIT_ENV", "OPENCODE_CONFIG", "OPENCODE", "MAX_RUNS", "TRANSCRIPTS_URL", "TRANSCRIPTS_LISTEN"],
  ...["TRANSCRIPT_RETENTION_DAYS", "HEALTH_LISTEN", "METRICS_LISTEN"],
];

/** Every variable with our prefix that some part of the project reads. */
export const KNOWN: ReadonlySet<string> = new Set([...OURS, ...THEIRS].map((name) => PREFIX + name));

/**
 * Settings of Paperclip's process, with what this agent's configuration says instead.
 *
 * @param environment of Paperclip's process; only names with our prefix are looked at.
 * @param config of one agent; undefined: none is concerned.
 * @throws ConfigurationError naming every unknown or wrong setting.
 */
export function settingsFrom(environment: NodeJS.ProcessEnv, config: JsonObject = {}): Settings {
  const read = new Reading(environment, config);
  const sealingKeyFile = read.text("SEALING_KEY_FILE") ?? join(homedir(), ".agent-runs", "sealing-key.json");
  const settings: Settings = {
    temporal: {
      address: read.text("TEMPORAL_ADDRESS") ?? "127.0.0.1:7233",
      namespace: read.text("TEMPORAL_NAMESPACE") ?? "default",
      tls: read.flag("TEMPORAL_TLS", false),
      // the key is for our own Temporal, and whoever edits an agent may name any address
      apiKey: read.named("TEMPORAL_ADDRESS") ? undefined : read.text("TEMPORAL_API_KEY"),
    },
    taskQueue: read.text("TASK_QUEUE") ?? "agent-runs",
    webUi: read.text("WEB_UI"),
    transcriptsUrl: read.url("TRANSCRIPTS_PUBLIC_URL"),
    transcriptsKeyFile: read.text("TRANSCRIPTS_KEY_FILE") ?? join(dirname(sealingKeyFile), "transcripts-key.json"),
    sealingKeyFile,
    sealingKey: read.text("SEALING_KEY"),
    paperclipApiUrl: read.url("PAPERCLIP_API_URL"),
    onBusy: read.choice("ON_BUSY", ["wait", "refuse"]),
    reportAs: read.choice("REPORT_AS", ["opencode_local", "opencode_k8s"]),
    boardApiKey: read.text("BOARD_API_KEY"),
    reconcile: read.flag("RECONCILE", true),
    production: read.flag("PRODUCTION", false),
  };
  read.complain();
  return settings;
}

const YES = ["1", "on", "t", "true", "y", "yes"];
const NO = ["0", "off", "f", "false", "n", "no"];

/** Reads single settings and remembers what is wrong with them. */
class Reading {
  private readonly environment: NodeJS.ProcessEnv;
  private readonly config: JsonObject;
  private readonly problems: { field: string; remedy: string }[];

  constructor(environment: NodeJS.ProcessEnv, config: JsonObject) {
    this.environment = environment;
    this.config = config;
    const unknown = Object.keys(environment).filter((name) => name.startsWith(PREFIX) && !KNOWN.has(name));
    this.problems = unknown.sort().map((field) => ({ field, remedy: "is no setting: look for a misspelling" }));
  }

  /** A value that says something; an empty one is an untouched field of a form or a template. */
  text(name: string): string | undefined {
    const { field, value } = this.found(name);
    if (value === undefined || value === null) return undefined;
    if (typeof value !== "string") return this.wrong(field, "must be text");
    return value.trim() || undefined;
  }

  /** Whether the agent's configuration says something else than the environment. */
  named(name: string): boolean {
    const { field, value } = this.found(name);
    return field.startsWith("config.") && value !== this.environment[PREFIX + name]?.trim();
  }

  flag(name: string, fallback: boolean): boolean {
    const word = this.text(name)?.toLowerCase();
    if (word === undefined) return fallback;
    if (!YES.includes(word) && !NO.includes(word)) this.wrong(this.found(name).field, "must be true or false");
    return YES.includes(word);
  }

  url(name: string): string | undefined {
    const address = this.text(name);
    if (address === undefined || isAbsoluteUrl(address)) return address;
    return this.wrong(this.found(name).field, ABSOLUTE_URL);
  }

  /** One of `choices`, the first of them without a setting. */
  choice<const T extends string>(name: string, choices: readonly [T, ...T[]]): T {
    const said = this.text(name);
    const chosen = choices.find((choice) => choice === said);
    if (said !== undefined && chosen === undefined) {
      this.wrong(this.found(name).field, `must be one of ${choices.join(", ")}`);
    }
    return chosen ?? choices[0];
  }

  complain(): void {
    if (this.problems.length > 0) throw new ConfigurationError(this.problems);
  }

  private found(name: string): { field: string; value: unknown } {
    const key = Object.keys(PER_AGENT).find((key) => PER_AGENT[key] === name);
    const value = key !== undefined && Object.hasOwn(this.config, key) ? this.config[key] : undefined;
    const said = typeof value === "string" ? value.trim() !== "" : value !== undefined && value !== null;
    return said ? { field: `config.${key}`, value } : { field: PREFIX + name, value: this.environment[PREFIX + name] };
  }

  private wrong(field: string, remedy: string): undefined {
    if (!this.problems.some((problem) => problem.field === field)) this.problems.push({ field, remedy });
    return undefined;
  }
}
