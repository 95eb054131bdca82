/**
 * Which session a wake names and whether it may be resumed. Same rules as `agent_runs/paperclip/session.py`.
 */

import type { SessionParams } from "../contracts.ts";
import { decodeSession, ID_KEYS } from "../session.ts";
import type { Problem } from "./problems.ts";
import { normalPath, strip } from "./python.ts";

/** What OpenCode's `--session` could take. */
const SESSION_ID = /^[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}$/;
const DATA_ROOT = "/paperclip";

export type Session = SessionParams;

/** `runtime` of a context, its fields validated. */
export interface ContextRuntime {
  readonly sessionId?: string;
  readonly sessionParams?: Record<string, unknown>;
}

/** The session of a wake: `sessionParams` in any spelling, else the bare `sessionId`; undefined for a fresh one. */
export function decodedSession(runtime: ContextRuntime, problems: Problem[]): Session | undefined {
  const raw = runtime.sessionParams ?? {};
  if (ID_KEYS.some((key) => Object.hasOwn(raw, key) && typeof raw[key] !== "string")) {
    problems.push({ field: "runtime.sessionParams", remedy: "sessionId must be text; reset the agent's session" });
    return undefined;
  }
  const stored = decodeSession(raw) ?? undefined;
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
export function resume(stored: Session | undefined, directory: string, enabled: boolean): Resume {
  if (stored === undefined) return {};
  if (!enabled) return { reason: `session ${stored.sessionId} is not resumed: resumeLastSession is off` };
  if (typeof stored.cwd === "string" && normalPath(stored.cwd) !== normalPath(directory)) {
    const reason =
      `session ${stored.sessionId} is not resumed: it belongs to ${stored.cwd}, this wake works in ` +
      `${directory}, and OpenCode hangs when a session is resumed elsewhere`;
    return { reason };
  }
  return { session: stored };
}
