"""Every captured run of the real OpenCode gets the verdict that a person gave it."""

import itertools
import json
import random
from collections.abc import Iterator
from decimal import Decimal
from functools import cache
from typing import Any

from agent_runs.contracts import errors
from agent_runs.contracts.errors import RunCancelled
from agent_runs.contracts.outcome import ContainerEnd, Report
from tests.support.cases import case
from tests.support.saved_output import fold_chunks
from tests.transcript.captures import ALL, FAILURES, SUCCESSES, Capture, captures


@cache
def report_of(capture: Capture) -> Report:
    fold = fold_chunks([capture.stdout], [capture.stderr], capture.resumed_session)
    return fold.report(capture.end)


def named(name: str) -> Report:
    return report_of(Capture(name))


def events(capture: Capture) -> list[dict[str, Any]]:
    """The plain reading of a capture, as an oracle: every whole line through `json.loads`."""
    found = []
    for line in capture.stdout.split(b"\n"):
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def finishes(capture: Capture) -> list[dict[str, Any]]:
    return [event["part"] for event in events(capture) if event["type"] == "step_finish"]


def test_every_capture_has_a_verdict_in_the_table() -> None:
    assert {capture.name for capture in ALL} == set(FAILURES) | SUCCESSES
    assert not set(FAILURES) & SUCCESSES


def test_a_captured_run_gets_its_verdict() -> None:
    for capture in ALL:
        with case(capture.name):
            report = report_of(capture)
            assert (report.failure.code if report.failure else None) == FAILURES.get(capture.name)
            assert (report.exit_code == 0) == (capture.name in SUCCESSES)
            assert report.exit_code is not None
            assert report.unknown_session == (FAILURES.get(capture.name) == "session_unavailable")
            assert report.clear_session == (FAILURES.get(capture.name) in {"session_unavailable", "context_overflow"})
            if report.failure:
                assert report.failure.message.strip()
                assert "\x1b" not in report.failure.message


def test_spend_and_session_are_counted_whatever_the_verdict() -> None:
    for capture in ALL:
        with case(capture.name):
            report, read = report_of(capture), events(capture)
            tokens = [part["tokens"] for part in finishes(capture)]
            assert report.steps == len(tokens)
            assert report.usage.input_tokens == sum(step["input"] for step in tokens)
            assert report.usage.output_tokens == sum(step["output"] + step["reasoning"] for step in tokens)
            assert report.usage.cached_input_tokens == sum(step["cache"]["read"] for step in tokens)
            assert report.usage.cache_write_tokens == sum(step["cache"]["write"] for step in tokens)
            costs = [Decimal(str(part["cost"])) for part in finishes(capture)]
            assert report.cost_usd == (sum(costs) if costs else None)
            assert report.tool_calls == sum(event["type"] == "tool_use" for event in read)
            assert report.events == len(read)
            if read:
                assert report.session_id == read[0]["sessionID"]


def test_chunking_changes_nothing() -> None:
    for capture in ALL:
        with case(capture.name):
            whole = report_of(capture)
            chance = random.Random(capture.name)
            # three megabytes in pieces of a few bytes take longer than all other captures, and say nothing new
            for size in (7, 1000, 70_000) if len(capture.stdout) < 1_000_000 else (1000, 70_000):
                fold = fold_chunks(
                    pieces(capture.stdout, chance, size), pieces(capture.stderr, chance, size), capture.resumed_session
                )
                assert fold.report(capture.end) == whole


def pieces(whole: bytes, chance: random.Random, size: int) -> Iterator[bytes]:
    start = 0
    while start < len(whole):
        end = start + chance.randint(1, size)
        yield whole[start:end]
        start = end


def test_the_answer_is_the_text_of_the_last_finished_message() -> None:
    assert named("opencode/usage-overflow").summary == "I go on with the summary."
    assert named("opencode/no-ripgrep").summary == "All done."
    assert named("opencode/tool-text-bash").summary == "Both streams were captured."
    assert named("opencode-logged/context-overflow-once").summary == "Now it fits."


def test_what_opencode_writes_to_the_model_is_no_answer() -> None:
    """Compaction ends with a synthetic prompt that belongs to a user message."""
    assert named("opencode/compaction-loop").last_output.startswith("FAKE-SUMMARY")


def test_output_before_a_kill_is_kept() -> None:
    killed = named("opencode/sigterm-in-tool")
    assert killed.summary == killed.last_output == "Going to sleep."
    assert killed.failure is not None
    assert "SIGTERM" in killed.failure.message
    assert killed.exit_code == 143


def test_a_lone_surrogate_and_odd_characters_can_be_stored() -> None:
    assert named("opencode-logged/text-surrogate").summary.encode() == "half an emoji: � and � alone".encode()
    weird = named("opencode/text-weird").summary
    assert "\x00" not in weird
    assert "\u2028" in weird
    assert weird.encode()


def test_an_answer_of_two_million_characters_is_cut_for_the_outcome() -> None:
    report = named("opencode/stdout-file")
    assert len(report.summary) == 16_000
    assert report.summary.endswith("…")
    assert report.model_dump_json()


def test_a_hung_run_is_known_by_the_session_in_its_log() -> None:
    assert named("opencode-logged/hang-no-answer").session_id == "ses_dff89fe55ffeVsQQU0yAbFw8Ws"
    assert named("opencode-logged/resume-hang").session_id == "ses_dff8a19d7ffezWHcCO1448ZQF8"
    assert named("opencode-logged/hang-no-answer").agent_version == "1.18.33"


def test_a_child_session_is_not_the_runs() -> None:
    capture = Capture("opencode-logged/subagent")
    only_log = fold_chunks([], [capture.stderr]).report(capture.end)
    assert only_log.session_id == report_of(capture).session_id == "ses_dff8b2e70ffeeF7FB2Wh5zZlFi"
    childs = next(line for line in capture.stderr.splitlines() if b"parentID=ses_" in line)
    assert fold_chunks([], [childs]).session_id is None


def test_an_unexpected_server_error_names_its_cause_from_the_log() -> None:
    failure = named("opencode-logged/wrong-model").failure
    assert failure is not None
    assert "Model not found: fake/scenario/not-declared" in failure.message
    assert "err_574cee0b" in failure.message


def test_a_start_failure_has_opencodes_message_without_noise() -> None:
    def message(name: str) -> str:
        failure = named(name).failure
        assert failure is not None
        return failure.message

    assert message("opencode/dir-missing").startswith("Error: Failed to change directory to /nonexistent")
    assert message("opencode/home-unset").startswith("EACCES: permission denied, mkdir '/nonexistent'")
    assert "Bun v" not in message("opencode/home-unset")
    assert message("opencode/flag-unknown").startswith("OpenCode did not accept its arguments")
    assert "Configuration is invalid at" in message("opencode/config-wrong-type")
    assert message("opencode/attach-refused").startswith("Error: Session not found")


def test_a_blocked_permission_is_named() -> None:
    for name, permission in (
        ("opencode/permission-ask", "bash (echo hello-from-bash)"),
        ("opencode/tool-outside", "external_directory (/etc/*)"),
    ):
        failure = named(name).failure
        assert failure is not None
        assert permission in failure.message


def test_a_permission_is_recognised_without_stderr() -> None:
    capture = Capture("opencode/permission-ask")
    failure = fold_chunks([capture.stdout]).report(capture.end).failure
    assert failure is not None
    assert failure.code == "permission_blocked"


def test_a_recovered_run_is_a_success_with_a_warning() -> None:
    recovered = named("opencode-logged/context-overflow-once")
    assert recovered.failure is None
    assert recovered.exit_code == 0
    assert recovered.warnings == ("OpenCode reported 1 error(s) and recovered",)
    assert recovered.clear_session is False


def test_tool_errors_do_not_fail_a_run() -> None:
    report = named("opencode/tool-fail")
    assert report.failure is None
    assert len(report.tool_errors) == 2
    assert report.errors == ()


def test_a_run_that_we_stopped_is_named_after_the_reason() -> None:
    for capture in (each for each in ALL if each.meta["signal"]):
        with case(capture.name):
            fold = fold_chunks([capture.stdout], [capture.stderr], capture.resumed_session)
            report = fold.report(capture.end, stopped=RunCancelled.as_failure("Run cancelled"))
            assert report.failure == RunCancelled.as_failure("Run cancelled")
            assert report.usage == fold.progress.usage


def test_no_beginning_of_a_successful_output_is_a_success() -> None:
    """Whatever a slow reader loses: cut at every line end, and in the middle of every line, of the last step."""
    for capture in (each for each in ALL if each.name in SUCCESSES):
        with case(capture.name):
            lines = capture.stdout.split(b"\n")[:-1]
            if len(lines) > 40:
                lines = lines[-40:]
            for kept in range(len(lines)):
                whole = b"".join(line + b"\n" for line in lines[:kept])
                for cut in (whole, whole + lines[kept][: len(lines[kept]) // 2]):
                    report = fold_chunks([cut], [capture.stderr], capture.resumed_session).report(capture.end)
                    if report.failure is None:
                        last = json.loads(lines[kept - 1])
                        assert last["type"] == "step_finish", "only a finished stop can pass for an end"
                        assert last["part"]["reason"] == "stop"


ENDS = (
    *(ContainerEnd(exit_code=code) for code in (0, 1, 3, 126, 137, 143, None)),
    ContainerEnd(exit_code=1, reason="Error"),
    ContainerEnd(exit_code=137, reason="OOMKilled"),
    ContainerEnd(exit_code=0, reason="OOMKilled"),
    *(ContainerEnd(exit_code=1, runner_error=error) for error in ("disk_full", "sidecar", "agent_lost")),
)


def test_messages_name_the_agent_that_ran() -> None:
    for capture in captures("opencode"):
        events = capture.stdout
        for output, resumed in itertools.product((events, events[:-20], b""), (None, "old session")):
            fold = fold_chunks([output], resumed_session=resumed)
            for end in ENDS:
                for missing in ("nothing", "end"):
                    report = fold.report(end, missing=missing, verified=True, agent="Claude Code")
                    said = [*report.warnings, report.failure.message if report.failure else ""]
                    assert "OpenCode" not in json.dumps(said), [capture.name, end, said]


def test_a_next_step_is_right_for_every_agent() -> None:
    assert [code for code, failure in errors.FAILURES.items() if "OpenCode" in failure.next_step] == []
