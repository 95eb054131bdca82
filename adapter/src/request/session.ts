/**
 * Paperclip's session parameters and the rule which session a wake may resume. The twin of paperclip/session.py.
 *
 * Paperclip stores what a run returns as session parameters and hands it to the next wake of the same task. Every
 * spelling the existing adapters ever wrote is read. Paperclip's host adds keys of its own (`__paperclip…`), which are
 * ignored.
 */

import type { SessionParams } from "../contracts.ts";
import { isObject, own } from "./plain.ts";
import type { Problem } from "./problems.ts";
import { normalPath, strip } from "./python.ts";

export const ID_KEYS = ["sessionId", "session_id", "sessionID"] as const;
const FIELDS = {
  cwd: ["cwd", "workdir", "folder"],
  workspaceId: ["workspaceId", "workspace_id"],
  repoUrl: ["repoUrl", "repo_url"],
  repoRef: ["repoRef", "repo_ref"],
} as const;
/** What OpenCode's `--session` could take. */
const SESSION_ID = /^[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}$/;
const DATA_ROOT = "/paperclip";

export type Session = SessionParams;

/** `runtime` of a context, its fields validated. */
export interface ContextRuntime {
  readonly sessionId?: string;
  readonly sessionParams?: Record<string, unknown>;
}

/** Session parameters in any spelling, or undefined. Never throws: Paperclip calls this on every scheduler tick. */
export function sessionFrom(raw: unknown): Session | undefined {
  if (!isObject(raw)) return undefined;
  const sessionId = first(raw, ID_KEYS);
  if (sessionId === undefined) return undefined;
  const found = Object.entries(FIELDS).map(([field, keys]) => [field, first(raw, keys)] as const);
  return { sessionId, ...Object.fromEntries(found.filter(([, text]) => text !== undefined)) };
}

/** The session id alone: Paperclip sometimes hands back nothing else, so it must be enough to resume. */
export function sessionIdFrom(raw: unknown): string | undefined {
  return isObject(raw) ? first(raw, ID_KEYS) : undefined;
}

/** The session of a wake: `sessionParams` in any spelling, else the bare `sessionId`; undefined for a fresh one. */
export function decodedSession(runtime: ContextRuntime, problems: Problem[]): Session | undefined {
  const raw = runtime.sessionParams ?? {};
  if (ID_KEYS.some((key) => Object.hasOwn(raw, key) && typeof raw[key] !== "string")) {
    problems.push({ field: "runtime.sessionParams", remedy: "sessionId must be text; reset the agent's session" });
    return undefined;
  }
  const stored = sessionFrom(raw);
  const session = stored ?? (runtime.sessionId ? { sessionId: strip(runtime.sessionId) } : undefined);
  if (session !== undefined && !SESSION_ID.test(session.sessionId)) {
    const remedy = "the session id may hold letters, digits and '_.:-' only, 128 at most; reset the agent's session";
    problems.push({ field: stored ? "runtime.sessionParams" : "runtime.sessionId", remedy });
  }
  return session;
}

/** Where OpenCode works in the pod: the workspace, else `config.cwd`, else the data volume. */
export function workingDirectory(workspace: string | undefined, configured: string | undefined): string {
  return normalPath(workspace || configured || DATA_ROOT);
}

/** Which session a wake resumes, if any, and a sentence for people if a stored one is left. */
export interface Resume {
  readonly session?: Session;
  readonly reason?: string;
}

/**
 * Decides whether a wake that works in `directory` may resume the stored session.
 *
 * OpenCode binds a session to its directory: resumed from another one it calls the model, runs tools in the old
 * directory, prints nothing and never ends. A stored session without a directory is trusted, because Paperclip
 * sometimes hands back the bare id.
 */
export function resume(stored: Session | undefined, directory: string, wanted: boolean): Resume {
  if (stored === undefined) return {};
  if (!wanted) return { reason: `session ${stored.sessionId} is not resumed: resumeLastSession is off` };
  if (typeof stored.cwd === "string" && normalPath(stored.cwd) !== normalPath(directory)) {
    const reason =
      `session ${stored.sessionId} is not resumed: it belongs to ${stored.cwd}, this wake works in ` +
      `${directory}, and OpenCode hangs when a session is resumed elsewhere`;
    return { reason };
  }
  return { session: stored };
}

function first(raw: Record<string, unknown>, keys: readonly string[]): string | undefined {
  const texts = keys.map((key) => own(raw, key)).filter((value): value is string => typeof value === "string");
  return texts.map(strip).find((text) => text !== "");
}
