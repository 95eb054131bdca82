/** Reads a session in every spelling, for `request/session.ts`. Same rules as `agent_runs/paperclip/session.py`. */

import type { SessionParams } from "./contracts.ts";
import { ID_KEYS } from "./session.ts";

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
  const found: SessionParams = { sessionId };
  for (const [field, keys] of Object.entries(FIELD_SPELLINGS)) {
    const value = first(raw, keys);
    if (value !== null) found[field] = value;
  }
  return found;
}

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
