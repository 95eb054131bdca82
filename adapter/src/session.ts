/**
 * Paperclip's session codec: reads every spelling that the existing adapters ever wrote, writes one. Same rules as
 * `agent_runs/paperclip/session.py`.
 *
 * Paperclip calls this on every scheduler tick, with keys of its own in the parameters, with `{}`, with null, or with the
 * display id alone: so it is pure and never throws, and the display id is the session id.
 */

import type { SessionParams } from "./contracts.ts";
import type { AdapterSessionCodec, JsonObject } from "./paperclip.ts";

/** Every spelling of the session id; the first one with a value counts. */
export const ID_KEYS = ["sessionId", "session_id", "sessionID"];
const FIELD_SPELLINGS: { [field: string]: string[] } = {
  cwd: ["cwd", "workdir", "folder"],
  workspaceId: ["workspaceId", "workspace_id"],
  repoUrl: ["repoUrl", "repo_url"],
  repoRef: ["repoRef", "repo_ref"],
};

/** Session parameters in any spelling; null when they name no session. Absent fields are left out. */
export function decodeSession(raw: unknown): SessionParams | null {
  if (typeof raw !== "object" || raw === null || Array.isArray(raw)) return null;
  const sessionId = first(raw, ID_KEYS);
  if (sessionId === null) return null;
  const found: SessionParams & { [field: string]: string } = { sessionId };
  for (const [field, keys] of Object.entries(FIELD_SPELLINGS)) {
    const value = first(raw, keys);
    if (value !== null) found[field] = value;
  }
  return found;
}

export const sessionCodec: AdapterSessionCodec = {
  deserialize: (raw) => decodeSession(raw) as JsonObject | null,
  serialize: (params) => decodeSession(params) as JsonObject | null,
  getDisplayId: (params) => decodeSession(params)?.sessionId ?? null,
};

function first(raw: object, keys: string[]): string | null {
  for (const key of keys) {
    const value = readSafely(raw, key);
    if (typeof value === "string" && value.trim()) return value.trim();
  }
  return null;
}

/** The value, unless reading it throws. */
function readSafely(raw: object, key: string): unknown {
  try {
    return (raw as { [key: string]: unknown })[key];
  } catch {
    return undefined;
  }
}
