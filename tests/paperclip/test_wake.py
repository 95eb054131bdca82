import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runs.paperclip.wake import normalize, wake_payload
from tests.paperclip.contexts import FIXTURES, captured, captured_environment

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("name", ["ctx-1", "ctx-2", "ctx-4"])
def test_the_payload_equals_paperclips_own_byte_for_byte(name: str) -> None:
    payload = wake_payload(captured(name)["context"]["paperclipWake"])
    assert payload == captured_environment(name)["PAPERCLIP_WAKE_PAYLOAD_JSON"]


def test_the_payload_of_the_first_wake_equals_the_capture() -> None:
    captured_payload = (FIXTURES / "paperclip" / "wake-payload-1.json").read_text().strip()
    assert wake_payload(captured("ctx-1")["context"]["paperclipWake"]) == captured_payload


@pytest.mark.parametrize("wake", [None, "text", [], {}, {"reason": "x"}, {"reason": "x", "issue": {"status": "todo"}}])
def test_a_wake_without_content_has_no_payload(wake: Any) -> None:
    assert wake_payload(wake) is None


def test_comments_without_a_body_are_dropped_and_the_latest_is_the_last_id() -> None:
    wake = {
        "comments": [
            {"id": " c1 ", "body": " hi ", "author": {"type": "user", "id": ""}},
            {"id": "c2", "body": " "},
            5,
        ],
        "commentIds": ["c1", " ", 7, "c2"],
    }
    payload = normalize(wake)
    assert payload is not None
    assert payload["comments"] == [
        {
            "id": "c1",
            "issueId": None,
            "body": " hi ",
            "bodyTruncated": False,
            "createdAt": None,
            "authorType": "user",
            "authorId": None,
        }
    ]
    assert (payload["commentIds"], payload["latestCommentId"]) == (["c1", "c2"], "c2")
    assert (payload["requestedCount"], payload["includedCount"], payload["missingCount"]) == (1, 1, 0)


def test_the_comment_window_gives_the_counts() -> None:
    payload = normalize({"commentIds": ["c1"], "commentWindow": {"requestedCount": 9, "missingCount": 8}})
    assert payload is not None
    assert (payload["requestedCount"], payload["includedCount"], payload["missingCount"]) == (9, 0, 8)


def test_an_unknown_stage_role_is_null() -> None:
    payload = normalize({"executionStage": {"wakeRole": "king", "stageId": "s"}})
    assert payload is not None
    assert payload["executionStage"]["wakeRole"] is None


def test_a_watchdog_is_cut_to_its_limits() -> None:
    payload = normalize({"taskWatchdog": {"instructions": "x" * 5000, "leaves": [{}] * 30, "capabilities": [1] * 60}})
    assert payload is not None
    watchdog = payload["taskWatchdog"]
    assert [len(watchdog[name]) for name in ("instructions", "leaves", "capabilities")] == [4000, 25, 50]


FIELDS = ["reason", "issue", "comments", "commentIds", "commentWindow", "taskWatchdog", "activeTreeHold"]
STAGES = ["executionStage", "continuationSummary", "childIssueSummaries", "checkboxSelection", "recovery"]


@given(st.dictionaries(st.sampled_from(FIELDS + STAGES), JSON))
def test_the_payload_of_any_wake_is_json_with_every_field(wake: dict[str, Any]) -> None:
    payload = wake_payload(wake)
    if payload is not None:
        assert list(json.loads(payload)) == list(normalize({"commentIds": ["c"]}) or {})
