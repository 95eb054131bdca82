"""The order of judgement, where the captured runs do not reach."""

import itertools
import json
import signal
from typing import Any

import pytest

from agent_runs.contracts.errors import AgentSilent, RunCancelled, RunTimeout
from agent_runs.contracts.outcome import ContainerEnd, Report, Usage
from agent_runs.transcript.fold import RECENT_IDS, Fold
from agent_runs.transcript.verdict import Missing
from tests.support.cases import case
from tests.support.lines import file_line

SESSION = "ses_e001b6f10ffeowfTKMtc0DNYmh"


def line(kind: str, session: str = SESSION, **part: Any) -> bytes:
    return json.dumps({"type": kind, "sessionID": session, "part": {"messageID": "m", **part}}).encode()


STOP = line("step_finish", id="p", reason="stop", tokens={"input": 5, "output": 5})
FINISHED = (line("step_start"), line("text", text="Done."), STOP)
RATE_LIMITED = b'{"type":"error","error":{"name":"APIError","data":{"message":"slow down","statusCode":429}}}'


def folded(*stdout: bytes, stderr: tuple[bytes, ...] = (), resumed: str | None = None) -> Fold:
    fold = Fold(resumed)
    for raw in stdout:
        fold.add(file_line(raw))
    for raw in stderr:
        fold.add(file_line(raw, "stderr"))
    return fold


def code(report: Report) -> str | None:
    return report.failure.code if report.failure else None


@pytest.mark.parametrize(
    ("end", "expected", "exit_code"),
    [
        pytest.param(ContainerEnd(), "k8s_exit_unknown", 1, id="nothing-known"),
        pytest.param(ContainerEnd(exit_code=137, reason="ContainerStatusUnknown"), "k8s_exit_unknown", 137, id="lost"),
        pytest.param(ContainerEnd(exit_code=137, reason="OOMKilled"), "oom_killed", 137, id="oom"),
        pytest.param(ContainerEnd(exit_code=0, reason="OOMKilled"), "oom_killed", 1, id="oom-of-a-child"),
        pytest.param(ContainerEnd(exit_code=137, reason="Error"), "opencode_crashed", 137, id="sigkill"),
        pytest.param(ContainerEnd(signal=11), "opencode_crashed", 139, id="segfault"),
        pytest.param(ContainerEnd(exit_code=192), "opencode_crashed", 192, id="last-signal"),
        *(
            pytest.param(ContainerEnd(exit_code=n), "adapter_failed", n, id=f"{n}-is-no-signal")
            for n in (128, 193, 255)
        ),
        pytest.param(ContainerEnd(exit_code=128, reason="StartError"), "opencode_start_failed", 128, id="start-error"),
    ],
)
def test_the_container_outweighs_a_finished_answer(end: ContainerEnd, expected: str, exit_code: int) -> None:
    report = folded(*FINISHED).report(end)
    assert code(report) == expected
    assert report.exit_code == exit_code
    assert report.summary == "Done."
    assert report.usage.input_tokens == 5


OOM = "OOMKilled"


@pytest.mark.parametrize(
    ("output", "end", "verified", "expected"),
    [
        pytest.param(FINISHED, ContainerEnd(exit_code=0, reason=OOM), True, None, id="a-tool"),
        pytest.param(FINISHED, ContainerEnd(exit_code=0, reason=OOM), False, "oom_killed", id="unproven"),
        pytest.param(FINISHED, ContainerEnd(exit_code=137, reason=OOM), True, "oom_killed", id="opencode"),
        pytest.param(FINISHED, ContainerEnd(exit_code=1, reason=OOM), True, "oom_killed", id="went-wrong"),
        pytest.param(FINISHED[:-1], ContainerEnd(exit_code=0, reason=OOM), True, "oom_killed", id="unfinished"),
    ],
)
def test_a_tool_out_of_memory_is_a_warning_once_all_proves_that_opencode_finished(
    output: tuple[bytes, ...], end: ContainerEnd, verified: bool, expected: str | None
) -> None:
    report = folded(*output).report(end, verified=verified)
    assert code(report) == expected
    assert any(OOM in warning for warning in report.warnings) == (expected is None)
    assert report.exit_code == (end.exit_code or bool(expected))


@pytest.mark.parametrize(
    ("exit_code", "message"),
    [
        (137, "Pod exited: OOMKilled (exit 137)"),
        (1, "A process of the agent was killed for the container's memory limit; Pod exited: OOMKilled (exit 1)"),
    ],
)
def test_out_of_memory_says_whether_opencode_itself_was_killed(exit_code: int, message: str) -> None:
    failure = folded().report(ContainerEnd(exit_code=exit_code, reason=OOM)).failure
    assert failure is not None
    assert failure.message == message


@pytest.mark.parametrize("number", [1, 2, 3, 6, 9, 11, 15])
def test_a_crash_names_its_signal(number: int) -> None:
    failure = folded(*FINISHED).report(ContainerEnd(signal=number)).failure
    assert failure is not None
    assert f"ended by {signal.Signals(number).name};" in failure.message


@pytest.mark.parametrize("exit_code", [126, 127])
def test_a_program_that_cannot_be_executed_has_the_message_of_its_container(exit_code: int) -> None:
    failure = folded().report(ContainerEnd(exit_code=exit_code, message="runner: no such program")).failure
    assert failure is not None
    assert failure.code == "opencode_start_failed"
    assert "no such program" in failure.message


def test_a_program_that_cannot_be_executed_never_started() -> None:
    report = folded(stderr=(b"sh: opencode: not found",)).report(ContainerEnd(exit_code=127))
    assert code(report) == "opencode_start_failed"
    assert report.failure is not None
    assert "opencode: not found" in report.failure.message


@pytest.mark.parametrize("events", [(), (FINISHED[0],)], ids=["before the first event", "after one"])
def test_a_lost_server_is_named_as_a_lost_agent_whatever_it_had_done(events: tuple[bytes, ...]) -> None:
    end = ContainerEnd(exit_code=1, runner_error="server_lost", message="runner: server_lost (it does not answer)")
    failure = folded(*events).report(end).failure
    assert failure is not None
    assert (failure.code, failure.message) == ("agent_lost", "runner: server_lost (it does not answer)")


@pytest.mark.parametrize(
    ("missing", "exit_code", "expected"),
    [("nothing", 0, None), ("middle", 0, None), ("end", 0, "output_lost"), ("end", 1, "adapter_failed")],
)
def test_only_a_seen_end_proves_success(missing: Missing, exit_code: int, expected: str | None) -> None:
    report = folded(*FINISHED).report(ContainerEnd(exit_code=exit_code), missing=missing)
    assert code(report) == expected
    assert bool(report.warnings) == (missing == "middle")


def test_lost_output_outweighs_a_finish_reason_and_says_what_is_lost() -> None:
    cut = line("step_finish", id="p", reason="length", tokens={"output": 5})
    for output, what in ((cut, "the end of its output could not be read"), (b"no event", "without any event")):
        failure = (
            folded(output).report(ContainerEnd(exit_code=0), missing="end" if output is cut else "nothing").failure
        )
        assert failure is not None
        assert failure.code == "output_lost"
        assert what in failure.message


@pytest.mark.parametrize("half", [b'{"type":"step_st', b'{"type":"summary","text":"' + b"x" * 2_000_000])
def test_a_half_last_line_is_lost_output_even_after_a_stop(half: bytes) -> None:
    fold = folded(*FINISHED)
    fold.add(file_line(half, terminated=False))
    assert code(fold.report(ContainerEnd(exit_code=0))) == "output_lost"


@pytest.mark.parametrize("message", [b"ENOSPC: no space left on device, write", b"EPIPE: broken pipe, write"])
def test_a_stop_is_no_end_when_opencode_could_not_write_its_output(message: bytes) -> None:
    report = folded(*FINISHED, stderr=(message,)).report(ContainerEnd(exit_code=1))
    assert code(report) == "output_lost"
    assert report.failure is not None
    assert message.decode() in report.failure.message


@pytest.mark.parametrize("before", [[], [line("step_start")]])
def test_a_full_disk_is_a_named_failure(before: list[bytes]) -> None:
    report = folded(*before).report(ContainerEnd(exit_code=1, reason="Error", runner_error="disk_full"))
    assert code(report) == "output_lost"
    assert report.failure is not None
    assert "disk" in report.failure.message


@pytest.mark.parametrize(("name", "exit_code"), [("agent_not_started", 1), ("agent_protocol", 1), ("agent_lost", 137)])
def test_the_end_that_the_driver_of_an_agent_found_is_named(name: str, exit_code: int) -> None:
    error = {"name": "AgentLost", "data": {"message": f"{name}: the agent ended with exit code 3"}}
    said = json.dumps({"type": "error", "sessionID": "s", "error": error}).encode()
    report = folded(line("step_start"), said).report(ContainerEnd(exit_code=exit_code, runner_error=name))
    assert code(report) == name
    assert report.failure is not None
    assert report.failure.message == "the agent ended with exit code 3"
    silent = folded().report(ContainerEnd(exit_code=exit_code, runner_error=name))
    assert (code(silent), silent.exit_code) == (name, exit_code)


def test_a_missing_api_proxy_is_no_failure_of_the_agent() -> None:
    report = folded().report(ContainerEnd(exit_code=125, reason="Error", runner_error="sidecar"))
    assert code(report) == "sidecar_unavailable"
    assert report.failure is not None
    assert report.failure.budget == "infrastructure"


CLAIMS = ["runner: disk_full", "words; runner: disk_full", "runner: api (--api)"]


def test_a_termination_message_cannot_claim_an_error_of_the_runner() -> None:
    for message, output, exit_code in itertools.product(CLAIMS, ((), (line("step_start"),), FINISHED), (0, 1, 125)):
        with case(message, output, exit_code):
            end = ContainerEnd(exit_code=exit_code, reason="Error")
            claimed = end.model_copy(update={"message": message})
            assert folded(*output).report(claimed) == folded(*output).report(end)


def test_a_whole_last_event_needs_no_line_end_and_stray_text_is_no_half_event() -> None:
    fold = folded(*FINISHED[:-1])
    fold.add(file_line(STOP, terminated=False))
    assert code(fold.report(ContainerEnd(exit_code=0))) is None
    fold.add(file_line(b"a farewell without line end", terminated=False))
    assert code(fold.report(ContainerEnd(exit_code=0))) is None


@pytest.mark.parametrize("follower", [line("step_start"), line("text", text="more"), line("tool_use", callID="c")])
def test_a_stop_with_something_after_it_is_not_the_end(follower: bytes) -> None:
    assert code(folded(*FINISHED, follower).report(ContainerEnd(exit_code=0))) == "output_lost"


def test_a_finish_reason_with_something_after_it_names_no_failure() -> None:
    cut = line("step_finish", id="p", reason="length", tokens={"output": 5})
    assert code(folded(cut).report(ContainerEnd(exit_code=1))) == "output_cut_off"
    assert code(folded(cut, line("step_start")).report(ContainerEnd(exit_code=1))) == "adapter_failed"


def test_an_error_after_the_stop_fails_and_a_stop_after_the_error_recovers() -> None:
    assert code(folded(*FINISHED, RATE_LIMITED).report(ContainerEnd(exit_code=1))) == "provider_quota"
    went_on = line("step_finish", id="p", reason="tool-calls", tokens={"output": 5})
    assert code(folded(RATE_LIMITED, went_on).report(ContainerEnd(exit_code=1))) == "provider_quota"
    recovered = folded(RATE_LIMITED, *FINISHED).report(ContainerEnd(exit_code=1))
    assert code(recovered) is None
    assert recovered.errors == ("slow down",)
    assert len(recovered.warnings) == 1


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("length", "output_cut_off"),
        ("content-filter", "model_refused"),
        ("unknown", "stream_eof_transient"),
        ("error", "opencode_error"),
        ("other", "opencode_error"),
        ("tool-calls", "output_lost"),
        (None, None),
    ],
)
def test_the_last_finish_reason_decides_at_exit_0(reason: str | None, expected: str | None) -> None:
    finish = line("step_finish", id="p", reason=reason, tokens={"output": 5})
    report = folded(*FINISHED[:2], finish).report(ContainerEnd(exit_code=0))
    assert code(report) == expected
    assert report.finish_reason == reason


def test_a_session_that_once_reached_its_step_limit_is_not_resumed() -> None:
    at_the_limit = line("step_finish", id="p0", reason="max_steps", tokens={"output": 5})
    report = folded(line("step_start"), at_the_limit, *FINISHED).report(ContainerEnd(exit_code=0))
    assert code(report) is None
    assert report.clear_session
    assert not folded(*FINISHED).report(ContainerEnd(exit_code=0)).clear_session


@pytest.mark.parametrize("ids", [{"callID": "c"}, {"id": "p"}])
def test_a_tool_call_is_counted_once_however_often_its_line_comes(ids: dict[str, str]) -> None:
    call = line("tool_use", tool="bash", **ids)
    assert folded(call, call, line("tool_use", tool="bash", callID="other")).progress.tool_calls == 2


@pytest.mark.parametrize(
    ("after", "exit_code", "expected"),
    [
        ((), 0, "permission_blocked"),
        ((), 1, "permission_blocked"),
        ((), 2, "adapter_failed"),
        ((line("step_start"),), 1, "adapter_failed"),
    ],
)
def test_a_rejected_permission_is_the_cause_only_where_opencode_stopped_at_it(
    after: tuple[bytes, ...], exit_code: int, expected: str
) -> None:
    rejected = "The user rejected permission to use this specific tool call."
    call = line("tool_use", tool="bash", callID="c", state={"status": "error", "error": rejected})
    finish = line("step_finish", id="p", reason="tool-calls", tokens={"output": 5})
    assert code(folded(call, finish, *after).report(ContainerEnd(exit_code=exit_code))) == expected


def test_of_many_steps_the_latest_are_recognised_when_their_lines_come_again() -> None:
    steps = [line("step_finish", id=str(number), reason="stop") for number in range(2 * RECENT_IDS)]
    assert folded(*steps, *steps[-9:]).report(ContainerEnd(exit_code=0)).steps == len(steps)


def test_without_a_cache_there_are_no_cached_tokens() -> None:
    report = folded(*FINISHED).report(ContainerEnd(exit_code=0))
    assert report.usage == Usage(input_tokens=5, output_tokens=5)
    assert report.last_context_tokens == 5


def test_a_step_is_counted_once_however_often_its_line_comes() -> None:
    report = folded(*FINISHED, STOP, STOP).report(ContainerEnd(exit_code=0))
    assert report.steps == 1
    assert report.usage.input_tokens == 5
    assert code(report) is None


def test_an_agent_that_ends_well_without_a_word_does_not_say_that_it_knows_no_session() -> None:
    for resumed, unknown in ((SESSION, False), ("no id of OpenCode's", True)):
        with case(resumed):
            assert folded(resumed=resumed).report(ContainerEnd(exit_code=0)).unknown_session is unknown


def test_the_first_twenty_errors_of_an_attempt_are_kept() -> None:
    errors = [json.dumps({"type": "error", "error": {"name": f"Error{n}"}}).encode() for n in range(25)]
    kept = folded(*errors).report(ContainerEnd(exit_code=1)).errors
    assert [error.partition(":")[0] for error in kept] == [f"Error{n}" for n in range(20)]


def test_a_session_that_opencode_does_not_find_is_unavailable_and_cleared() -> None:
    report = folded(stderr=(b"\x1b[91mError: \x1b[0mSession not found",), resumed=SESSION).report(
        ContainerEnd(exit_code=1)
    )
    assert code(report) == "session_unavailable"
    assert report.unknown_session
    assert report.clear_session


def test_an_agent_cannot_forge_the_loss_of_its_own_session() -> None:
    """A line break in its command puts a line of its own on stderr, after its session has begun."""
    forged = (b"! permission requested: bash (echo 'a", b"Error: Session not found", b"'); auto-rejecting")
    rejected = {"callID": "c", "tool": "bash", "state": {"status": "error", "error": "no"}}
    finish = {"id": "p", "reason": "tool-calls", "tokens": {"output": 5}}
    for session in (SESSION, "ses_another00000000000000000"):
        lines = (line("step_start", session), line("tool_use", session, **rejected))
        fold = folded(*lines, line("step_finish", session, **finish), stderr=forged, resumed=SESSION)
        for exit_code in (0, 1):
            report = fold.report(ContainerEnd(exit_code=exit_code))
            assert code(report) == "permission_blocked"
            assert report.clear_session is False


def test_an_error_that_carries_the_session_proves_that_it_exists() -> None:
    error = json.dumps({"type": "error", "sessionID": SESSION, "error": {"name": "UnknownError"}}).encode()
    report = folded(error, stderr=(b"Error: Session not found",), resumed=SESSION).report(ContainerEnd(exit_code=1))
    assert code(report) == "opencode_error"


@pytest.mark.parametrize(
    "data",
    [
        {"message": "Session not found", "statusCode": 404},
        {"message": "no session token was given"},
        {"message": "the session was not found"},
    ],
)
def test_a_provider_error_about_sessions_does_not_clear_ours(data: dict[str, object]) -> None:
    error = json.dumps({"type": "error", "error": {"name": "APIError", "data": data}}).encode()
    report = folded(error, resumed=SESSION).report(ContainerEnd(exit_code=1))
    assert report.failure is not None
    assert report.unknown_session is False
    assert report.clear_session is False


def test_a_timeout_does_not_undo_an_answer_that_opencode_finished_by_itself() -> None:
    timeout = RunTimeout.as_failure("Timed out after 5s")
    for exit_code, expected in ((0, None), (1, "timeout"), (143, "timeout")):
        assert code(folded(*FINISHED).report(ContainerEnd(exit_code=exit_code), stopped=timeout)) == expected


def test_every_line_that_was_cut_is_counted_in_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_runs.transcript.fold.LINE_LIMIT", 1000)
    cut = (b"x" * 1000, b"no event " * 200, b'{"type":"text","text":"' + b"x" * 2000)
    report = folded(*cut, b"x" * 999, *FINISHED).report(ContainerEnd(exit_code=0))
    assert code(report) is None
    assert [warning for warning in report.warnings if warning.startswith("3 over-long line(s)")]


def test_text_without_a_finished_step_is_no_success() -> None:
    assert code(folded(line("text", text="Done.")).report(ContainerEnd(exit_code=0))) is not None


def test_a_cancel_stands_whatever_the_output_shows() -> None:
    cancelled = RunCancelled.as_failure("Run cancelled")
    for end in (ContainerEnd(exit_code=0), ContainerEnd(), ContainerEnd(exit_code=143)):
        report = folded(*FINISHED).report(end, stopped=cancelled)
        assert report.failure == cancelled
        assert report.summary == "Done."
    assert code(folded().report(ContainerEnd(), stopped=RunTimeout.as_failure("Timed out after 5s"))) == "timeout"


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, "provider_rejected"),
        (401, "provider_credentials"),
        (402, "provider_quota"),
        (404, "provider_rejected"),
        (408, "provider_unavailable"),
        (413, "context_overflow"),
        (422, "provider_rejected"),
        (429, "provider_quota"),
        (500, "provider_unavailable"),
        (529, "provider_unavailable"),
        ("429", "opencode_error"),
        (True, "opencode_error"),
    ],
)
def test_a_status_code_names_the_failure(status: object, expected: str) -> None:
    error = {"type": "error", "error": {"name": "APIError", "data": {"message": "no", "statusCode": status}}}
    assert code(folded(json.dumps(error).encode()).report(ContainerEnd(exit_code=1))) == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ({"name": "ProviderAuthError", "data": {"message": "key"}}, "provider_credentials"),
        ({"name": "MessageOutputLengthError", "data": {}}, "output_cut_off"),
        ({"name": "ContentFilterError", "data": {"message": "no"}}, "model_refused"),
        ({"type": "ContextOverflowError", "message": "2.x spelling"}, "context_overflow"),
        ({"name": "APIError", "data": {"message": "reset", "isRetryable": True}}, "provider_unavailable"),
        ({"name": "UnknownError", "data": {"message": "AI_LoadAPIKeyError: no key"}}, "provider_credentials"),
        (None, "opencode_error"),
        ([["deep"]], "opencode_error"),
        (7, "opencode_error"),
    ],
)
def test_an_error_of_any_shape_names_a_failure(error: object, expected: str) -> None:
    report = folded(json.dumps({"type": "error", "error": error}).encode()).report(ContainerEnd(exit_code=1))
    assert code(report) == expected
    assert report.errors[0]


def refused(message: str, status: int | None = 400, **data: Any) -> Report:
    """A run whose resumed session met this answer of its provider."""
    error = {"name": "APIError", "data": {"message": message, "statusCode": status, "isRetryable": False, **data}}
    said = json.dumps({"type": "error", "sessionID": SESSION, "error": error}).encode()
    return folded(line("step_start"), said, resumed=SESSION).report(ContainerEnd(exit_code=1))


IN_THE_HISTORY = [
    "messages.7: `tool_use` ids were found without `tool_result` blocks immediately after: toolu_x1.",
    "messages.9.content.1.image.source.base64: image exceeds 5 MB maximum: 5895160 bytes > 5242880 bytes",
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'.",
    "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.",
    "No tool output found for function call call_9.",
    "Please ensure that function call turn comes immediately after a user turn or after a function response turn.",
    "The request body is not valid JSON: no low surrogate in string: line 1 column 80213 (char 80212)",
    "Failed to parse the request body as JSON: lone leading surrogate in hex escape",
    "'utf-8' codec can't encode character '\\ud83d' in position 12: surrogates not allowed",
    "Invalid 'input[12].arguments': string too long.",
    "The image data you provided does not represent a valid image.",
    "Could not process image",
    "At least one of the image dimensions exceed max allowed size for many-image requests: 2000 pixels",
    "Image too large: 21 MB, the limit is 20 MB",
    "A maximum of 100 PDF pages may be provided.",
    "insufficient tool messages following tool_calls message",
    "Not the same number of function calls and responses",
    "Unexpected role 'user' after role 'tool'",
    "unexpected end of hex escape at line 1 column 80213",
    "Item with id 'rs_68' not found.",
    "The `reasoning_content` in the thinking mode must be passed back to the API.",
    "messages: text content blocks must be non-empty",
    "Item 'rs_68' of type 'reasoning' was provided without its required following item.",
    "`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified.",
]


def test_a_session_whose_history_a_provider_refuses_is_cleared_at_once() -> None:
    for message in IN_THE_HISTORY:
        for report in (refused(message), refused(message, None), refused("Bad Request", responseBody=message)):
            with case(message, report.failure):
                assert (code(report), report.clear_session) == ("session_rejected", True)
    for message, status, expected in (
        ("no", 400, "provider_rejected"),
        ("max_tokens: 64000 > 32000, which is the maximum of this model", 400, "provider_rejected"),
        ("tools.0.custom.input_schema: JSON schema is invalid", 400, "provider_rejected"),
        ("Invalid 'temperature': must be at most 2", 400, "provider_rejected"),
        ("This model does not support image input", 400, "provider_rejected"),
        ("messages.7: overloaded", 529, "provider_unavailable"),
        ("messages.7: slow down", 429, "provider_quota"),
    ):
        with case(message, status):
            report = refused(message, status)
            assert (code(report), report.clear_session) == (expected, False)


OVERFLOWS = [
    "prompt is too long: 210031 tokens > 200000 maximum",
    "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
    "Input is too long for requested model.",
    "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "This model's maximum context length is 128000 tokens. However, your messages resulted in 130512 tokens.",
    "This endpoint's maximum context length is 131072 tokens.",
    "The input token count (1200431) exceeds the maximum number of tokens allowed (1048576).",
    "This model's maximum prompt length is 131072 but the request contains 140000 tokens.",
    "Please reduce the length of the messages or completion.",
    "the request exceeds the available context size, try increasing it",
    "prompt too long; exceeded max context length by 412 tokens",
    "The number of tokens to keep from the initial prompt is greater than the context length",
    "Invalid request: Your request exceeded model token limit: 262144",
    "invalid params, context window exceeds limit",
]


def test_an_overflow_that_only_its_text_tells_clears_the_session() -> None:
    for message in OVERFLOWS:
        for report in (
            refused(message),
            refused(message, None),
            refused(message, 500),
            refused("Bad Request", responseBody=json.dumps({"error": {"message": message}})),
        ):
            with case(message, report.failure):
                assert (code(report), report.clear_session) == ("context_overflow", True)
    for message in ("Request too large on tokens per min (TPM): Limit 30000, Requested 40000", OVERFLOWS[0]):
        assert code(refused(message, 429)) == "provider_quota"


def compaction(agent: str, session: str = SESSION) -> bytes:
    """The log's line about a request to the provider."""
    return (
        f"timestamp=2026-11-20T10:00:00.000Z level=INFO run=1 message=stream providerID=p modelID=m "
        f"session.id={session} small=false agent={agent} mode=primary"
    ).encode()


def test_the_summary_of_a_compaction_is_not_the_answer() -> None:
    calls = line("step_finish", id="p0", reason="tool-calls", tokens={"output": 5})
    last = (line("step_start"), line("tool_use", tool="read", callID="c"), calls, *FINISHED)
    loop = f"timestamp=2026-11-20T10:00:00.000Z level=INFO run=1 message=loop session.id={SESSION} step=0".encode()
    for log, expected in (
        ([compaction("compaction")], "agent_unfinished"),
        ([loop, compaction("build"), compaction("compaction"), compaction("title")], "agent_unfinished"),
        ([loop, compaction("compaction"), compaction("general", "ses_sub_agent_1")], "agent_unfinished"),
        ([loop, compaction("compaction"), compaction("build")], None),
        ([loop, compaction("build"), compaction("compaction", "ses_sub_agent_1")], None),
    ):
        with case(log):
            report = folded(*last, stderr=tuple(log)).report(ContainerEnd(exit_code=0))
            assert code(report) == expected
            assert report.summary == ("Done." if expected is None else "")
            assert not report.clear_session


def test_a_limit_of_output_is_named_though_no_token_was_counted() -> None:
    for reason, expected in (
        ("length", "output_cut_off"),
        ("content-filter", "model_refused"),
        ("stop", "llm_api_error"),
    ):
        nothing = line("step_finish", id="p", reason=reason, tokens={"input": 100, "output": 0, "reasoning": 0})
        with case(reason):
            assert code(folded(line("step_start"), nothing).report(ContainerEnd(exit_code=0))) == expected


def test_an_agent_that_stops_after_its_tools_has_lost_no_output_if_the_receipt_says_so() -> None:
    task = line("tool_use", tool="task", callID="c1"), line("tool_use", tool="task", callID="c2")
    calls = line("step_finish", id="p0", reason="tool-calls", tokens={"output": 5})
    fold = folded(line("step_start"), *task, calls)
    whole, unproven = (fold.report(ContainerEnd(exit_code=0), verified=each) for each in (True, False))
    assert (code(whole), code(unproven)) == ("agent_unfinished", "output_lost")
    assert whole.failure is not None
    assert "stopped after its tools" in whole.failure.message
    assert "missing" not in whole.failure.message


def test_a_crash_after_an_answer_stays_a_crash_that_says_so_and_keeps_session_and_answer() -> None:
    for output, after in ((FINISHED, True), (FINISHED[:-1], False)):
        report = folded(*output).report(ContainerEnd(signal=11), verified=True)
        with case(after):
            assert (code(report), report.session_id, report.summary) == ("opencode_crashed", SESSION, "Done.")
            assert report.failure is not None
            assert ("had ended with an answer" in report.failure.message) == after
            assert not report.clear_session


def test_the_most_specific_of_several_errors_decides() -> None:
    vague = b'{"type":"error","error":{"name":"UnknownError","data":{"message":"Unexpected server error."}}}'
    for order in ((vague, RATE_LIMITED), (RATE_LIMITED, vague)):
        report = folded(*order).report(ContainerEnd(exit_code=1))
        assert code(report) == "provider_quota"
        assert report.failure is not None
        assert "slow down" in report.failure.message
        assert "Unexpected server error." in report.failure.message


def test_progress_shows_steps_tokens_and_the_last_output() -> None:
    fold = folded(
        *FINISHED[:2], line("tool_use", callID="c", tool="bash", state={"status": "completed", "title": "make"})
    )
    progress = fold.progress
    assert (progress.session_id, progress.steps, progress.tool_calls) == (SESSION, 0, 1)
    assert progress.last_output == "bash: make"
    fold.add(file_line(line("text", text="First.\n\x1b[31m" + "x" * 1000)))
    assert len(fold.progress.last_output) == 200
    assert "\x1b" not in fold.progress.last_output


@pytest.mark.parametrize("end", [ContainerEnd(exit_code=143, reason="Error"), ContainerEnd(signal=9)])
def test_an_agent_that_stays_after_its_whole_answer_has_succeeded(end: ContainerEnd) -> None:
    silent = AgentSilent.as_failure("no progress for 30s")
    report = folded(*FINISHED).report(end, stopped=silent)
    assert (report.failure, report.exit_code, report.summary, report.stayed) == (None, 0, "Done.", True)
    assert report.warnings == ("OpenCode did not exit after its last step, and was stopped",)
    for unfinished in (FINISHED[:2], (*FINISHED, line("step_start")), (*FINISHED, RATE_LIMITED)):
        assert code(folded(*unfinished).report(end, stopped=silent)) == "agent_silent"
    assert code(folded(*FINISHED).report(end, stopped=RunCancelled.as_failure("by a user"))) == "cancelled"


def test_a_cause_from_the_log_is_read_as_it_was_before_it_was_quoted() -> None:
    log = rb'timestamp=2026-11-20T10:00:00.000Z level=ERROR run=1 ref=err_1 error="in \"C:\\new\": not \"a\""'
    data = {"message": "Unexpected server error.", "ref": "err_1"}
    error = json.dumps({"type": "error", "error": {"name": "UnknownError", "data": data}}).encode()
    report = folded(error, stderr=(log,)).report(ContainerEnd(exit_code=1))
    assert report.failure is not None
    assert report.failure.message.startswith('in "C:\\new": not "a" (err_1)')


def test_the_report_has_the_version_that_the_agents_driver_names() -> None:
    for version, reported in (("2.0.15", "2.0.15"), (7, None), (None, None), ({}, None)):
        named = json.dumps({"type": "agent_version", "sessionID": SESSION, "version": version}).encode()
        with case(version):
            assert folded(named, *FINISHED).report(ContainerEnd(exit_code=0)).agent_version == reported


def test_a_run_without_a_step_has_used_no_context() -> None:
    assert folded(FINISHED[0]).report(ContainerEnd(exit_code=1)).last_context_tokens == 0


def test_only_an_agent_that_was_stopped_after_its_last_step_is_said_to_have_stayed() -> None:
    for end in (ContainerEnd(exit_code=0), ContainerEnd(exit_code=1), ContainerEnd(exit_code=137, reason="OOMKilled")):
        assert not folded(*FINISHED).report(end).stayed
