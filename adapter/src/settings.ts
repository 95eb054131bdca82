/**
 * The plugin's settings: `AGENT_RUNS_*` and `TEMPORAL_*` of Paperclip's process, with the worker's names and defaults.
 *
 * An agent's configuration may name another task queue, never another service or a file of the host: whoever may edit an
 * agent must not choose what Paperclip's process reads or where it logs in. An unknown variable with our prefix is taken
 * for a misspelling and refused.
 */
import { readFile } from "node:fs/promises";
import { homedir } from "node:os";
import { dirname, isAbsolute, join } from "node:path";
import type { JWK } from "jose";
import settingNames from "../../agent_runs/contracts/settings.json" with { type: "json" };
import { ConfigurationError, type Problem } from "./errors.ts";
import type { JsonObject } from "./paperclip.ts";
import { type TemporalServer, temporalServer } from "./temporal-server.ts";

const PREFIX = "AGENT_RUNS_";

/**
 * Versions of Paperclip in which no browser loads a parser of an external adapter: the worker program that its UI runs
 * parsers in assigns to `self.caches`, which has no setter in a browser, and ends. Read in the UI's assets of this version
 * and seen in Chromium 156. A version that is not listed may load one.
 */
const WITHOUT_PARSERS: ReadonlySet<unknown> = new Set(["2026.916.1"]);

/** How a run's log is written: OpenCode's `events` for a parser, or `text` for people. */
export type LogFormat = "events" | "text";

/** The format for agents of this type. Paperclip's own parser of `opencode_local` reads OpenCode's events. */
export function logFormatFor({ logFormat }: Settings, adapterType: unknown, version: string | undefined): LogFormat {
  if (logFormat !== "auto") return logFormat;
  return WITHOUT_PARSERS.has(version) && adapterType !== "opencode_local" ? "text" : "events";
}

/** The settings of this plugin. They hold secrets and are never logged. */
export type Settings = Readonly<ReturnType<typeof settingsFrom>>;

/** Fields of an agent's configuration that override the environment, by the variables of ours that they override. */
const PER_AGENT: Record<string, string> = {
  TASK_QUEUE: "taskQueue",
  PAPERCLIP_API_URL: "paperclipApiUrl",
  ON_BUSY: "onBusy",
};
const KNOWN: ReadonlySet<string> = new Set(settingNames);
/** Variables that Kubernetes sets after Services. */
const SERVICE = /(_SERVICE_(HOST|PORT(_\w+)?)|_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)=|_PORT=(tcp|udp|sctp):/;
const [YES, NO] = [/^(1|on|t|true|y|yes)$/i, /^(0|off|f|false|n|no)$/i];
const ABSOLUTE_URL =
  "must be an absolute http:// or https:// URL without a login, query or fragment, such as https://paperclip.example";

/**
 * The settings of Paperclip's process, overridden by this agent's configuration.
 *
 * @param environment of Paperclip's process; only names with our prefix and Temporal's are read.
 * @throws ConfigurationError naming every unknown or wrong setting; of Temporal's variables the first one.
 */
export function settingsFrom(environment: NodeJS.ProcessEnv, config: JsonObject = {}) {
  const { text, choice, temporal, throwProblems } = settingsReader(environment, config);
  const sealingKeyFile = text("SEALING_KEY_FILE") ?? join(homedir(), ".agent-runs", "sealing-key.json");
  const arePaths = (list: string) => list.split(":").every((path) => isAbsolute(path));
  const isFlag = (word: string) => YES.test(word) || NO.test(word);
  const flag = (name: string) => !NO.test(text(name, isFlag, "must be true or false") ?? "yes");
  const settings = {
    temporal: temporal(),
    taskQueue: text("TASK_QUEUE") ?? "agent-runs",
    transcriptsUrl: text("TRANSCRIPTS_PUBLIC_URL", isAbsoluteUrl, ABSOLUTE_URL),
    /** JWK (kty oct) that signs the transcript service's tokens; it must be the service's own. */
    transcriptsKeyFile: text("TRANSCRIPTS_KEY_FILE") ?? join(dirname(sealingKeyFile), "transcripts-key.json"),
    /** JWK or JWK set of the sealing key; the public half is enough. */
    sealingKeyFile,
    /** The same as text; it has priority over the file. */
    sealingKey: text("SEALING_KEY"),
    /** Folders that instructions and skills of agents may be in, besides Paperclip's own for them. */
    readableFolders: text("READABLE_FOLDERS", arePaths, "must be absolute paths, separated by ':'")?.split(":") ?? [],
    /** Paperclip's address as pods reach it. */
    paperclipApiUrl: text("PAPERCLIP_API_URL", isAbsoluteUrl, ABSOLUTE_URL),
    /** The memo and the summary of a started run hold the names of its agent and task; without, its ids alone. */
    names: flag("NAMES"),
    onBusy: choice("ON_BUSY", ["wait", "refuse"]),
    /** The adapter type that an invocation is reported as; some of Paperclip's behaviour depends on it. */
    reportAs: choice("REPORT_AS", ["opencode_local", "opencode_k8s"]),
    /** How a run's log is written; `auto` depends on the Paperclip, see `logFormatFor`. */
    logFormat: choice("RUN_LOG_FORMAT", ["auto", "events", "text"]),
    /** For the reconciler, where Paperclip requires a login. */
    boardApiKey: text("BOARD_API_KEY"),
    reconcile: flag("RECONCILE"),
  };
  throwProblems();
  return settings;
}

/** Whether a request path can be appended to `address`: http(s), a host, no login, query or fragment. */
function isAbsoluteUrl(address: string): boolean {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what is refused
  if (/[\s\x00-\x1f\x7f?#\\]/.test(address) || !/^https?:\/\/[^/@]+(?:\/|$)/i.test(address)) return false;
  return URL.canParse(address) && new URL(address).port !== "0";
}

/** The value without space around it; undefined for none and for an empty text. */
const trimmed = (value: unknown) => (typeof value === "string" ? value.trim() || undefined : (value ?? undefined));

/** Reads single settings, and collects what is wrong with them. */
function settingsReader(environment: NodeJS.ProcessEnv, config: JsonObject) {
  const problems: Problem[] = [];
  /** A text; an empty one counts as absent, because forms and templates save untouched fields so. */
  function text(name: string, isRight = (_: string) => true, remedy = ""): string | undefined {
    const key = PER_AGENT[name];
    const own = key === undefined ? undefined : trimmed(config[key]);
    const value = own ?? trimmed(environment[PREFIX + name]);
    if (value === undefined || (typeof value === "string" && isRight(value))) return value;
    const field = own === undefined ? PREFIX + name : `config.${key}`;
    problems.push({ field, remedy: typeof value === "string" ? remedy : "must be text" });
  }
  /** One of `choices`, the first of them without a setting. */
  function choice<const T extends string>(name: string, choices: readonly [T, ...T[]]): T {
    const chosen = text(name, (word) => choices.includes(word as T), `must be one of ${choices.join(", ")}`);
    return (chosen as T | undefined) ?? choices[0];
  }
  function temporal(): TemporalServer {
    try {
      return temporalServer(environment);
    } catch (error) {
      if (!(error instanceof ConfigurationError)) throw error;
      problems.push(...error.problems);
      return { address: "", namespace: "", tls: false };
    }
  }
  /** Throws for what is wrong, and for variables with our prefix that no part of the project reads. */
  function throwProblems(): void {
    const ours = Object.keys(environment).filter((name) => name.startsWith(PREFIX));
    const unread = ours.filter((name) => !KNOWN.has(name.slice(PREFIX.length))).sort();
    const unknown = unread.filter((name) => !SERVICE.test(`${name}=${environment[name]}`));
    problems.push(...unknown.map((field) => ({ field, remedy: "is not a setting: check its spelling" })));
    if (problems.length > 0) throw new ConfigurationError(...problems);
  }
  return { text, choice, temporal, throwProblems };
}

/** A key file. The worker makes it, this side only reads: a key of its own would open nothing. */
export async function keyFile(path: string, field: string, copied: string): Promise<string> {
  return await readFile(path, "utf8").catch(({ code }: NodeJS.ErrnoException) => {
    const remedy = `start the worker once, which creates it, or copy ${copied} there, readable for Paperclip's server`;
    throw new ConfigurationError({ field, remedy: `names ${path}, which cannot be read (${code}): ${remedy}` });
  });
}

/** The key, or the first one of a set. Throws anything for what is neither. */
export function firstKey(text: string): JWK {
  const parsed = JSON.parse(text);
  return Array.isArray(parsed.keys) ? parsed.keys[0] : parsed;
}
