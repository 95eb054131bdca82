/**
 * Paperclip's session codec: passes session parameters through. The run's preparation reads every spelling that the
 * existing adapters ever wrote, and a result names a session in one (`agent_runs/paperclip/session.py`).
 *
 * Paperclip calls this on every scheduler tick, with keys of its own in the parameters, with `{}` or with null.
 */

import type { JsonObject } from "./paperclip.ts";

/** Every spelling of the session id; the first one with a value counts. */
const ID_KEYS = ["sessionId", "session_id", "sessionID"];

export const sessionCodec = {
  deserialize: (raw: unknown) => (idOf(raw) === null ? null : (raw as JsonObject)),
  serialize: (params: JsonObject | null) => (idOf(params) === null ? null : params),
  getDisplayId: idOf,
};

function idOf(params: unknown): string | null {
  const ids = ID_KEYS.map((key) => (params as JsonObject | null)?.[key]);
  return ids.find((id): id is string => typeof id === "string" && id.trim() !== "")?.trim() ?? null;
}
