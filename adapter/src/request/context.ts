/**
 * Paperclip's execution context, validated in one go: an operator sees every wrong field at once.
 *
 * Same rules as `ExecutionContext` in `agent_runs/contracts/request.py` and the further checks in
 * `agent_runs/paperclip/preparation.py`.
 */

import type { RunConfig, WakePrompt } from "../contracts.ts";
import {
  data,
  dictionary,
  flag,
  integer,
  jsonList,
  list,
  matching,
  object,
  oneOf,
  optionalText,
  Place,
  pairs,
  type Reader,
  required,
  text,
  unlessBlank,
  wholeNumber,
} from "./fields.ts";
import { isObject, own, type Plain, type PlainObject, present } from "./plain.ts";
import { InvalidRequest, type Problem } from "./problems.ts";
import { isPrintable, strip, truthy } from "./python.ts";
import { type ContextRuntime, decodedSession, type Session } from "./session.ts";

/** Bytes of `NAME=value` with its final NUL: Linux refuses to start a program with a longer one (MAX_ARG_STRLEN). */
export const VARIABLE_LIMIT = 128 * 1024 - 1;

const THIRTY_DAYS = 30 * 24 * 3600;
const MODEL_MISSING = "is missing: choose one as '<provider>/<model>', for example 'anthropic/claude-sonnet-4-6'";
const ENV_NAME = /^[A-Za-z_][A-Za-z0-9_.-]*$/;
const SERVICE_ACCOUNT = /^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$/;

const identifier = matching(
  /^[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}$/,
  "must start with a letter or digit and hold only letters, digits, '_', '.', ':', '-' (128 at most)",
  { trims: false },
);
const quantity = matching(
  /^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei)?$/,
  "must be a Kubernetes quantity such as '500m', '2' or '4Gi'",
);
const namespace = matching(
  /^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$/,
  "must be a namespace name: lowercase letters, digits and '-', 63 at most",
);
const labels = pairs(
  /^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$/,
  "keys must be Kubernetes label keys: '[prefix/]name', 63 characters at most after the '/'",
);
const seconds = wholeNumber(0, THIRTY_DAYS);
const someSeconds = wholeNumber(1, THIRTY_DAYS);

const model: Reader<string> = (value, place) => {
  const given = text(value, place);
  if (given === undefined) return undefined;
  const [provider = "", name = ""] = strip(given).split(/\/(.*)/s, 2);
  return strip(provider) && strip(name)
    ? strip(given)
    : place.refuse("must be '<provider>/<model>', for example 'anthropic/claude-sonnet-4-6'");
};

const amounts = object({ cpu: unlessBlank(quantity), memory: unlessBlank(quantity) });
const toleration = object({
  key: text,
  operator: oneOf("Exists", "Equal"),
  value: text,
  effect: oneOf("NoSchedule", "PreferNoSchedule", "NoExecute"),
  tolerationSeconds: integer,
});
const runtimeSkill = object(
  {
    key: required(text),
    runtimeName: text,
    source: text,
    sourceStatus: text,
    missingDetail: text,
    required: flag,
  },
  { required: false },
);
const desiredSkill = object({ key: required(text), versionId: text });

/** The fields of an agent's configuration that may enter a history. A value that equals the default is left out. */
const SAFE_FIELDS = {
  model: required(model, MODEL_MISSING),
  variant: optionalText,
  extraArgs: list(text),
  timeoutSec: seconds,
  graceSec: seconds,
  scheduleTimeoutSec: someSeconds,
  startTimeoutSec: someSeconds,
  firstOutputTimeoutSec: seconds,
  silenceTimeoutSec: seconds,
  infrastructureRetries: wholeNumber(0, 10),
  cwd: optionalText,
  namespace: unlessBlank(namespace),
  image: optionalText,
  imagePullPolicy: oneOf("IfNotPresent", "Always", "Never"),
  serviceAccountName: optionalText,
  resources: object({ requests: amounts, limits: amounts }),
  nodeSelector: labels,
  tolerations: jsonList(toleration, 'must be a JSON array, for example [{"key": "gpu", "operator": "Exists"}]'),
  labels,
  ttlSecondsAfterFinished: seconds,
  retainJobs: flag,
  agentDbMode: oneOf("workspace_subpath", "dedicated_pvc", "ephemeral"),
  agentDbStorageClass: optionalText,
  agentDbStorageCapacity: quantity,
  dangerouslySkipPermissions: flag,
  resumeLastSession: flag,
  instructionsFilePath: optionalText,
  paperclipApiUrl: optionalText,
  paperclipRuntimeSkills: list(runtimeSkill),
  paperclipSkillSync: object({
    desiredSkills: list((value, place) => desiredSkill(typeof value === "string" ? { key: value } : value, place)),
  }),
};
const SECRET_FIELDS = {
  env: dictionary(text),
  promptTemplate: optionalText,
  bootstrapPromptTemplate: optionalText,
  mcpServers: dictionary(data),
};
const DEFAULTS = {
  timeoutSec: 0,
  graceSec: 60,
  scheduleTimeoutSec: 600,
  startTimeoutSec: 600,
  firstOutputTimeoutSec: 420,
  silenceTimeoutSec: 3600,
  infrastructureRetries: 2,
  imagePullPolicy: "IfNotPresent",
  ttlSecondsAfterFinished: 300,
  retainJobs: false,
  agentDbMode: "workspace_subpath",
  agentDbStorageCapacity: "1Gi",
  dangerouslySkipPermissions: true,
  resumeLastSession: true,
};

const EMPTY_BY_DEFAULT = new Set(["extraArgs", "labels", "resources", "paperclipRuntimeSkills"]);

const settings = object({ ...SAFE_FIELDS, ...SECRET_FIELDS }, DEFAULTS);

const config: Reader<NonNullable<ReturnType<typeof settings>>> = (value, place) => {
  const before = place.problems.length;
  const found = settings(isObject(value) ? nestedResources(value) : value, place);
  if (found === undefined || place.problems.length > before) return undefined;
  return Object.keys(found.env ?? {}).every((name) => ENV_NAME.test(name))
    ? found
    : place.at("env").refuse("names must start with a letter or '_' and hold only letters, digits, '_', '.', '-'");
};

const workspace = object({
  cwd: optionalText,
  source: optionalText,
  strategy: optionalText,
  workspaceId: optionalText,
  repoUrl: optionalText,
  repoRef: optionalText,
  branchName: optionalText,
  worktreePath: optionalText,
  agentHome: optionalText,
});

const executionContext = object({
  runId: required(identifier, "is missing: the context must carry Paperclip's run id"),
  agent: required(
    object(
      {
        id: required(identifier, "is missing: the context must name the agent that runs"),
        companyId: required(identifier, "is missing: the context must name the agent's company"),
        name: text,
      },
      { name: "" },
    ),
  ),
  runtime: object({
    sessionId: optionalText,
    sessionParams: data,
    sessionDisplayId: optionalText,
    taskKey: optionalText,
  }),
  config: required(config),
  context: object({
    taskId: optionalText,
    issueId: optionalText,
    wakeReason: optionalText,
    wakeCommentId: optionalText,
    commentId: optionalText,
    approvalId: optionalText,
    approvalStatus: optionalText,
    issueIds: list(text),
    issueWorkMode: optionalText,
    retryOfRunId: optionalText,
    previousRunId: optionalText,
    paperclipWorkspace: workspace,
    paperclipRuntimePrimaryUrl: optionalText,
  }),
  authToken: text,
  runtimeTools: object({
    bearerToken: text,
    mcpEndpoint: optionalText,
    rest: data,
    expiresAt: optionalText,
    tools: list(text),
    guidance: text,
  }),
  wakePrompt: object({ fresh: text, resumed: text }, { fresh: "", resumed: "" }),
});

type Found = NonNullable<ReturnType<typeof executionContext>>;
type Given<T, Names extends keyof T> = T & { [Name in Names]-?: NonNullable<T[Name]> };

/** A context that can run. Holds secrets: never logged, never in a history. */
export interface ValidContext {
  readonly runId: string;
  readonly agent: Given<NonNullable<Found["agent"]>, "id" | "companyId">;
  readonly config: NonNullable<Found["config"]>;
  readonly session: Session | undefined;
  readonly taskKey: string | undefined;
  readonly context: NonNullable<Found["context"]>;
  readonly authToken: string | undefined;
  readonly runtimeTools: Found["runtimeTools"];
  readonly wakePrompt: WakePrompt;
}

export type AgentConfig = ValidContext["config"];

/**
 * The known fields of a tidied context.
 *
 * @throws InvalidRequest that names every wrong field by its Paperclip path with the remedy, and quotes no value.
 */
export function validated(tidy: PlainObject): ValidContext {
  const problems: Problem[] = [];
  const found = executionContext(asGiven(tidy), new Place(problems));
  if (found === undefined || problems.length > 0) throw new InvalidRequest([...problems, ...rawProblems(tidy)]);
  const session = decodedSession((found.runtime ?? {}) as ContextRuntime, problems);
  const context = {
    ...(found as Required<Found>),
    agent: found.agent as ValidContext["agent"],
    session,
    taskKey: found.runtime?.taskKey,
    context: found.context ?? {},
    wakePrompt: found.wakePrompt ?? {},
  };
  const listed = [...rawProblems(tidy), ...deeperProblems(context), ...problems];
  if (listed.length > 0) throw new InvalidRequest(listed);
  return context;
}

/** The part of a configuration that may enter a history; what is empty and empty by default is left out. */
export function safeConfig(given: AgentConfig): RunConfig {
  const resources = filled({ ...given.resources });
  const safe = Object.entries(given).filter(([name]) => Object.hasOwn(SAFE_FIELDS, name));
  const kept = Object.entries({ ...Object.fromEntries(safe), resources });
  return Object.fromEntries(
    kept.filter(([name, value]) => !EMPTY_BY_DEFAULT.has(name) || truthy(value)),
  ) as unknown as RunConfig;
}

function filled(value: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(value).filter(([, item]) => truthy(item)));
}

function asGiven(tidy: PlainObject): PlainObject {
  const given = present(tidy) as PlainObject;
  if (!isObject(given.config)) return given;
  // Paperclip's forms save an untouched field as an empty string.
  const filled = Object.fromEntries(Object.entries(given.config).filter(([, value]) => value !== ""));
  return { ...given, config: withVariant(filled as PlainObject) };
}

/** Paperclip's own "Thinking effort" is the variant: new agents have it as one key, changed ones as another. */
function withVariant(config: PlainObject): PlainObject {
  const isGiven = (value: unknown) => typeof value === "string" && strip(value) !== "";
  if (config.variant !== undefined && (typeof config.variant !== "string" || isGiven(config.variant))) return config;
  const effort = [own(config, "effort"), own(config, "thinkingEffort")].find(isGiven) as Plain | undefined;
  return effort === undefined ? config : { ...config, variant: effort };
}

const isFlat = (name: string): boolean => name.startsWith("resources.");

/**
 * The form saves `resources.requests.cpu` as one flat key; nested objects come from the API, and count first.
 * When a nested object is wrong, the flat keys are ignored: the error names the object.
 */
function nestedResources(value: Record<string, unknown>): Record<string, unknown> {
  const flat = Object.entries(value).filter(([name]) => isFlat(name));
  const rest = Object.fromEntries(Object.entries(value).filter(([name]) => !isFlat(name)));
  const nested = own(value, "resources") ?? {};
  if (flat.length === 0 || !isObject(nested)) return rest;
  const parts = { requests: own(nested, "requests") ?? {}, limits: own(nested, "limits") ?? {} };
  if (!isObject(parts.requests) || !isObject(parts.limits)) return rest;
  const amount = (kind: string) =>
    Object.fromEntries(
      flat
        .map(([name, given]) => [name.split("."), given] as const)
        .filter(([steps]) => steps[1] === kind && (steps[2] === "cpu" || steps[2] === "memory"))
        .map(([steps, given]) => [steps[2], given] as const)
        .reverse(),
    );
  const resources = {
    requests: { ...amount("requests"), ...parts.requests },
    limits: { ...amount("limits"), ...parts.limits },
  };
  return { ...rest, resources };
}

function rawProblems(tidy: PlainObject): Problem[] {
  const kubeconfig = isObject(tidy.config) && truthy(own(tidy.config, "kubeconfig"));
  const remedy =
    "is not honoured: agents run in the worker's cluster; clear the field, or send the run to the task queue " +
    "of a worker in that cluster";
  return kubeconfig ? [{ field: "config.kubeconfig", remedy }] : [];
}

function* deeperProblems({ config: given, context }: Pick<ValidContext, "config" | "context">): Generator<Problem> {
  for (const [field, path] of [
    ["config.cwd", given.cwd],
    ["context.paperclipWorkspace.cwd", context.paperclipWorkspace?.cwd],
  ] as const) {
    if (path !== undefined && (!path.startsWith("/") || !isPrintable(path))) {
      yield { field, remedy: "must be an absolute path without control characters" };
    }
  }
  if (given.serviceAccountName !== undefined && !SERVICE_ACCOUNT.test(given.serviceAccountName)) {
    const remedy = "must be a ServiceAccount's name: lowercase letters, digits, '-'";
    yield { field: "config.serviceAccountName", remedy };
  }
  if (given.image !== undefined && (!isPrintable(given.image) || strip(given.image).includes(" "))) {
    yield { field: "config.image", remedy: "must be an image reference without spaces" };
  }
  if (given.paperclipApiUrl !== undefined && !isAbsoluteUrl(given.paperclipApiUrl)) {
    yield { field: "config.paperclipApiUrl", remedy: ABSOLUTE_URL };
  }
  yield* wrongVariables(given.env ?? {});
}

function* wrongVariables(env: Record<string, string>): Generator<Problem> {
  for (const [name, value] of Object.entries(env)) {
    const field = `config.env.${name}`.slice(0, 200);
    if (value.includes("\0")) yield { field, remedy: "must not hold a NUL character" };
    if (Buffer.byteLength(`${name}=${value}`) > VARIABLE_LIMIT) {
      yield { field, remedy: `is too long: a variable may have ${VARIABLE_LIMIT} bytes` };
    }
  }
}

/** The remedy for a text that is not an absolute URL. */
export const ABSOLUTE_URL =
  "must be an absolute http:// or https:// URL without a login, query or fragment, such as https://paperclip.example";

/** Whether a request path can be appended to `address`: http(s), a host, no login, query or fragment. */
export function isAbsoluteUrl(address: string): boolean {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what is refused
  if (/[\s\x00-\x1f\x7f?#\\]/.test(address) || !/^https?:\/\/[^/@]+(?:\/|$)/i.test(address)) return false;
  return URL.canParse(address) && new URL(address).port !== "0";
}
