/**
 * Paperclip's session codec: it reads every spelling, writes one, and never throws.
 *
 * S1 to S7 are rows of the conformance tests: behaviour that the existing adapters' tests pin.
 */

import { describe, expect, it } from "vitest";
import { decodeSession, sessionCodec } from "../src/session.ts";

const WHOLE = { sessionId: "ses_1", cwd: "/w", workspaceId: "ws", repoUrl: "https://git.example/r", repoRef: "main" };
const LEGACY = {
  ...{ session_id: "ses_1", workdir: "/w", workspace_id: "ws" },
  ...{ repo_url: "https://git.example/r", repo_ref: "main" },
};

describe("the session codec", () => {
  it.each<[string, object, object]>([
    ["trims", { sessionId: " a " }, { sessionId: "a" }],
    ["session_id", { session_id: "a" }, { sessionId: "a" }],
    ["sessionID", { sessionID: "a" }, { sessionId: "a" }],
    ["the first spelling", { sessionID: "c", session_id: "b", sessionId: "a" }, { sessionId: "a" }],
    ["the second when the first is empty", { sessionID: "c", session_id: "b", sessionId: "" }, { sessionId: "b" }],
    ["no number as an id", { sessionId: 7, sessionID: "c" }, { sessionId: "c" }],
    ["folder", { sessionId: "a", folder: "/f" }, { sessionId: "a", cwd: "/f" }],
    ["workdir before folder", { sessionId: "a", folder: "/f", workdir: "/d" }, { sessionId: "a", cwd: "/d" }],
    ["cwd before workdir", { sessionId: "a", workdir: "/d", cwd: "/c" }, { sessionId: "a", cwd: "/c" }],
    ["blank fields as absent", { sessionId: "a", cwd: " ", repoUrl: "" }, { sessionId: "a" }],
    ["fields of other types as absent", { sessionId: "a", cwd: 7, repoUrl: null }, { sessionId: "a" }],
    ["none of Paperclip's own keys", { sessionId: "a", __paperclipConfiguredModel: "m", n: 1 }, { sessionId: "a" }],
    ["every field", WHOLE, WHOLE],
    ["every field in snake case", LEGACY, WHOLE],
  ])("S2 to S5: reads and writes %s", (_, raw, params) => {
    expect(sessionCodec.deserialize(raw)).toEqual(params);
    expect(sessionCodec.serialize(raw as never)).toEqual(params);
  });

  const withoutSession: unknown[][] = [
    ...[[null], [undefined], [{}], [[]], [["ses_1"]], ["ses_1"], [7]],
    ...[[{ sessionId: "" }], [{ sessionId: " " }], [{ sessionId: 7 }], [{ cwd: "/w" }]],
  ];
  it.each(withoutSession)("S1 and S5: has no session for %j", (raw) => {
    expect(sessionCodec.deserialize(raw)).toBeNull();
    expect(sessionCodec.serialize(raw as never)).toBeNull();
  });

  it("S5: writes a session as it was read", () => {
    expect(sessionCodec.serialize(sessionCodec.deserialize(LEGACY))).toEqual(WHOLE);
  });

  it.each<[unknown, string | null]>([
    [{ sessionId: "a" }, "a"],
    [{ session_id: "b" }, "b"],
    [{ sessionID: "c" }, "c"],
    [{ sessionID: "c", session_id: "b", sessionId: "a" }, "a"],
    [{ cwd: "/w" }, null],
    [{ sessionId: " " }, null],
    [{ sessionId: 7 }, null],
    ["ses_1", null],
    [undefined, null],
    [null, null],
  ])("S6: the display id of %j is the session id", (params, shown) => {
    expect(sessionCodec.getDisplayId?.(params as never)).toBe(shown);
  });

  // a deviation: see docs/deviations.md
  it.each([true, false, "true", null])("S7: drops a compaction flag: %j", (needsCompactBeforeNextRun) => {
    const raw = { sessionId: "a", needsCompactBeforeNextRun };
    expect(sessionCodec.deserialize(raw)).toEqual({ sessionId: "a" });
    expect(sessionCodec.serialize(raw)).toEqual({ sessionId: "a" });
  });

  it("survives an object that throws when it is read", () => {
    const hostile = {
      get sessionId(): string {
        throw new Error("no");
      },
    };
    expect(sessionCodec.deserialize(hostile)).toBeNull();
  });

  it("reads what it wrote unchanged, and does not change its argument", () => {
    const given = Object.freeze({ session_id: "ses_1", folder: "/work" });
    const once = decodeSession(given);
    expect(sessionCodec.deserialize(once)).toEqual(once);
  });
});
