/**
 * Paperclip's wake payload in the normal form that agents read from `PAPERCLIP_WAKE_PAYLOAD_JSON`.
 *
 * Same rules as `agent_runs/paperclip/wake.py`: field names, their order and the defaults are what Paperclip 2026.916.1 gives
 * to its own local agents, byte for byte.
 */
import { isObject, objectOr, own, type Plain, type PlainObject } from "./plain.ts";
import { cut, truthy } from "./python.ts";

const WATCHDOG_INSTRUCTIONS = 4000;
const WATCHDOG_LEAVES = 25;
const WATCHDOG_CAPABILITIES = 50;
const WAKE_ROLES: readonly unknown[] = ["reviewer", "approver", "executor"];

type Normal = (value: unknown) => Plain;

/** The payload as compact JSON, nulls kept; undefined when nothing in it is worth waking for, such as a bare reason. */
export function wakePayload(wake: unknown): string | undefined {
  if (!isObject(wake)) return undefined;
  const payload = normalize(wake);
  return MEANINGFUL.some((name) => truthy(payload[name])) ? JSON.stringify(payload) : undefined;
}

function normalize(wake: Record<string, unknown>): PlainObject {
  const read = Object.entries(FIELDS).map(([name, normal]) => [name, normal(own(wake, name))] as const);
  const { truncated, fallbackFetchNeeded, ...payload } = Object.fromEntries(read) as PlainObject & {
    commentIds: string[];
    comments: Plain[];
  };
  const latestCommentId = payload.latestCommentId || (payload.commentIds.at(-1) ?? null);
  return {
    ...payload,
    latestCommentId,
    ...counts(wake, payload.comments.length, payload.commentIds.length),
    truncated: truncated ?? false,
    fallbackFetchNeeded: fallbackFetchNeeded ?? false,
  };
}

const text: Normal = (value) => (typeof value === "string" ? value.trim() || null : null);
const flag: Normal = (value) => value === true;
const list = (value: unknown): unknown[] => (Array.isArray(value) ? value : []);
const texts = (value: unknown): string[] =>
  list(value)
    .map(text)
    .filter((item) => typeof item === "string");
const isWhole = (value: unknown): value is PlainObject => isObject(value) && truthy(value);
const whole: Normal = (value) => (isWhole(value) ? value : null);
const wholes: Normal = (value) => list(value).filter(isWhole);
const number: Normal = (value) => (typeof value === "number" ? value : null);
const body: Normal = (value) => (typeof value === "string" && value.trim() ? value : null);
const role: Normal = (value) => (WAKE_ROLES.includes(value) ? (value as string) : null);

/** Whether a normalised part has content: null, false, empty and zero values have none. */
function hasContent(value: Plain): boolean {
  return value !== null && value !== false && value !== 0 && !(Array.isArray(value) && value.length === 0);
}

function object(fields: Record<string, Normal>): Normal {
  return (value) => {
    if (!isObject(value)) return null;
    const found = Object.fromEntries(Object.entries(fields).map(([name, reads]) => [name, reads(own(value, name))]));
    return Object.values(found).some(hasContent) ? found : null;
  };
}

function objects(fields: Record<string, Normal>): Normal {
  const one = object(fields);
  return (value) =>
    list(value)
      .map(one)
      .filter((found) => found !== null);
}

const issue: Normal = (value) => {
  if (!isObject(value)) return null;
  const read = (names: string[]) => Object.fromEntries(names.map((name) => [name, text(own(value, name))]));
  const named = read(["id", "identifier", "title"]);
  if (!Object.values(named).some(Boolean)) return null;
  return {
    ...named,
    description: body(own(value, "description")),
    descriptionTruncated: flag(own(value, "descriptionTruncated")),
    ...read(["status", "workMode", "priority"]),
  };
};

const comment: Normal = (value) => {
  if (!isObject(value) || body(own(value, "body")) === null) return null;
  const author = objectOr(own(value, "author"));
  return {
    id: text(own(value, "id")),
    issueId: text(own(value, "issueId")),
    body: own(value, "body") as string,
    bodyTruncated: flag(own(value, "bodyTruncated")),
    createdAt: text(own(value, "createdAt")),
    authorType: text(own(author, "type")),
    authorId: text(own(author, "id")),
  };
};

const comments: Normal = (value) =>
  list(value)
    .map(comment)
    .filter((found) => found !== null);

const watchdog: Normal = (value) => {
  if (!isWhole(value)) return null;
  const kept = Object.entries(value).map(([name, item]) => {
    if (name === "instructions" && typeof item === "string") return [name, cut(item, WATCHDOG_INSTRUCTIONS)] as const;
    if (!Array.isArray(item)) return [name, item] as const;
    return [name, item.slice(0, name.toLowerCase().includes("lea") ? WATCHDOG_LEAVES : WATCHDOG_CAPABILITIES)] as const;
  });
  return Object.fromEntries(kept);
};

function counts(wake: Record<string, unknown>, comments: number, ids: number): PlainObject {
  const window = objectOr(own(wake, "commentWindow"));
  return {
    requestedCount: number(own(window, "requestedCount")) ?? (comments || ids),
    includedCount: number(own(window, "includedCount")) ?? comments,
    missingCount: number(own(window, "missingCount")) ?? 0,
  };
}

const PARTY = object({ type: text, agentId: text, userId: text });
const SUMMARY = { id: text, identifier: text, title: text, status: text, priority: text, summary: text };

const FIELDS: Record<string, Normal> = {
  reason: text,
  executionContinuation: whole,
  recovery: whole,
  issue,
  checkedOutByHarness: flag,
  externalChatExecutionBound: flag,
  externalChatProvider: text,
  externalChatQuestionResponse: whole,
  skillTest: truthy,
  simplifiedEnglishInteractions: flag,
  dependencyBlockedInteraction: flag,
  treeHoldInteraction: flag,
  activeTreeHold: object({ holdId: text, rootIssueId: text, mode: text, reason: text }),
  unresolvedBlockerIssueIds: texts,
  unresolvedBlockerSummaries: objects(SUMMARY),
  executionStage: object({
    wakeRole: role,
    stageId: text,
    stageType: text,
    currentParticipant: PARTY,
    returnAssignee: PARTY,
    reviewRequest: object({ instructions: text }),
    lastDecisionOutcome: text,
    allowedActions: texts,
  }),
  continuationSummary: object({ key: text, title: text, body, bodyTruncated: flag, updatedAt: text }),
  planReviewContext: whole,
  documentReviewContext: whole,
  annotationDeltas: wholes,
  livenessContinuation: object({
    attempt: number,
    maxAttempts: number,
    sourceRunId: text,
    state: text,
    reason: text,
    instruction: text,
  }),
  taskWatchdog: watchdog,
  interactionId: text,
  sourceRunId: text,
  interactionKind: text,
  interactionStatus: text,
  externalInteractionContinuation: flag,
  checkboxSelection: object({ prompt: text, selectedOptionIds: texts, selectedOptions: wholes }),
  questionResponse: whole,
  executionWorkspace: whole,
  agentMessage: whole,
  childIssueSummaries: objects(SUMMARY),
  childIssueSummaryTruncated: flag,
  commentIds: texts,
  latestCommentId: text,
  comments,
  truncated: flag,
  fallbackFetchNeeded: flag,
};

const MEANINGFUL = [
  ...["issue", "executionContinuation", "recovery", "activeTreeHold", "unresolvedBlockerIssueIds"],
  ...["unresolvedBlockerSummaries", "executionStage", "continuationSummary", "planReviewContext"],
  ...["documentReviewContext", "annotationDeltas", "livenessContinuation", "taskWatchdog", "checkboxSelection"],
  ...["questionResponse", "externalChatQuestionResponse", "agentMessage", "childIssueSummaries", "commentIds"],
  "comments",
];
