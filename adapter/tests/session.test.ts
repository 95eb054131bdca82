/**
 * Paperclip's session codec: it keeps what names a session, and shows its id.
 *
 * S1, S5 and S6 are rows of the conformance tests: behaviour that the existing adapters' tests pin. How a session is read
 * is pinned in `tests/conformance/test_paperclip.py`.
 */

import { describe, expect, it } from "vitest";
import { sessionCodec } from "../src/session.ts";

describe("the session codec", () => {
  it.each([
    [{ sessionId: "ses_1", cwd: "/w", workspaceId: "ws", repoUrl: "https://git.example/r", repoRef: "main" }],
    [{ session_id: "ses_1", workdir: "/w", workspace_id: "ws" }],
    [{ sessionID: "ses_1", folder: "/w" }],
    [{ sessionId: "ses_1", __paperclipConfiguredModel: "m", n: 1 }],
  ])("S5: reads and writes %j as it is", (params: { [name: string]: unknown }) => {
    expect(sessionCodec.deserialize(Object.freeze(params))).toEqual(params);
    expect(sessionCodec.serialize(params)).toEqual(params);
  });

  const withoutSession: unknown[][] = [
    ...[[null], [undefined], [{}], [[]], [["ses_1"]], ["ses_1"], [7]],
    ...[[{ sessionId: "" }], [{ sessionId: " " }], [{ sessionId: 7 }], [{ cwd: "/w" }]],
  ];
  it.each(withoutSession)("S1 and S5: has no session for %j", (raw) => {
    expect(sessionCodec.deserialize(raw)).toBeNull();
    expect(sessionCodec.serialize(raw as never)).toBeNull();
  });

  it.each<[unknown, string | null]>([
    [{ sessionId: " a " }, "a"],
    [{ session_id: "b" }, "b"],
    [{ sessionID: "c" }, "c"],
    [{ sessionID: "c", session_id: "b", sessionId: "a" }, "a"],
    [{ sessionID: "c", session_id: "b", sessionId: "" }, "b"],
    [{ sessionId: 7, sessionID: "c" }, "c"],
    [{ cwd: "/w" }, null],
    [{ sessionId: " " }, null],
    [{ sessionId: 7 }, null],
    ["ses_1", null],
    [undefined, null],
    [null, null],
  ])("S6: the display id of %j is the session id", (params, shown) => {
    expect(sessionCodec.getDisplayId?.(params as never)).toBe(shown);
  });
});
