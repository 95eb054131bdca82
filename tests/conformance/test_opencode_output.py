"""Rows R1-R14 and the outcome rows of the tests of Paperclip's built-in adapters, judged by output and exit code alone.

An id such as `R10-session-not-found` names the row. Names of rows where we deviate show it; docs/deviations.md has why.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pytest

from agent_runs.contracts.errors import RunTimeout
from agent_runs.contracts.outcome import ContainerEnd, Report, Usage
from agent_runs.transcript.fold import Fold
from agent_runs.transcript.pricing import PRICES, Cost, cost_of
from tests.support.lines import file_line

SESSION = "ses_e001b6f10ffeowfTKMtc0DNYmh"
Json = dict[str, Any]


def event(kind: str, **fields: Any) -> Json:
    return {"type": kind, "timestamp": 1, "sessionID": SESSION, **fields}


def text(words: str, message: str = "m1") -> Json:
    return event("text", part={"messageID": message, "type": "text", "text": words})


def finish(reason: str | None = "stop", message: str = "m1", cost: float = 0.002, **tokens: Any) -> Json:
    counted = {"input": 100, "output": 50, "reasoning": 0, "cache": {"read": 20, "write": 0}} | tokens
    part = {"id": f"p-{message}-{reason}", "messageID": message, "reason": reason, "cost": cost, "tokens": counted}
    return event("step_finish", part=part)


def error(**fields: Any) -> Json:
    return event("error", error=fields)


def tool_error(words: str) -> Json:
    return event("tool_use", part={"callID": "c1", "tool": "read", "state": {"status": "error", "error": words}})


START = event("step_start", part={"messageID": "m1"})
EMPTY = finish("stop", cost=0, input=0, output=0, cache={"read": 0, "write": 0})
HAPPY = (START, text("All done."), finish())
UNKNOWN_ERROR_EOF = error(name="UnknownError", data={"message": "JSON Parse error: Unexpected EOF"})


@dataclass(frozen=True)
class Row:
    """Output and container end, and what the report must have."""

    id: str
    expected: Json
    stdout: tuple[Json | str, ...] = ()
    stderr: str = ""
    exit_code: int | None = 0
    reason: str | None = None
    resumed: str | None = None
    message_has: tuple[str, ...] = field(default=())

    def report(self) -> Report:
        fold = Fold(self.resumed)
        for line in self.stdout:
            fold.add(file_line((line if isinstance(line, str) else json.dumps(line)).encode()))
        for line in self.stderr.splitlines():
            fold.add(file_line(line.encode(), "stderr"))
        return fold.report(ContainerEnd(exit_code=self.exit_code, reason=self.reason))


def failed(code: str, **more: Any) -> Json:
    return {"code": code, **more}


OK = {"code": None, "exit_code": 0}
UNKNOWN = failed("session_unavailable", clear_session=True, unknown_session=True)

ROWS = [
    # R1-R3: summary, usage
    Row("R1-two-texts-are-joined", {**OK, "summary": "Hello\n\nWorld", "session_id": SESSION, "errors": ()},
        (START, text("Hello"), text(" World "), finish())),
    Row("R1-two-texts-without-a-finish", {"summary": "Hello\n\nWorld"}, (text("Hello"), text("World"))),
    Row("R1-deviation-only-the-last-message-answers", {**OK, "summary": "World"},
        (START, text("Hello"), finish("tool-calls"), text("World", "m2"), finish(message="m2"))),
    Row("R2-usage-and-cost",
        {"usage": Usage(input_tokens=100, output_tokens=70, cached_input_tokens=80, reasoning_tokens=20),
         "cost_usd": Decimal("0.001")},
        (finish(cost=0.001, reasoning=20, cache={"read": 80}),)),
    Row("R3-step-finish-message-is-summary", {"summary": "the message"},
        (event("step_finish", part={"id": "p", "reason": "stop", "message": "the message"}),)),
    # R4-R6: errors
    Row("R4-message", {"errors": ("boom",)}, (error(message="boom"),)),
    Row("R4-string", {"errors": ("boom",)}, (event("error", error="boom"),)),
    Row("R4-event-message", {"errors": ("boom",)}, (event("error", message="boom"),)),
    Row("R4-two-errors-joined", {"errors": ("one", "two")}, (error(message="one"), error(message="two")),
        message_has=("one\ntwo",)),
    Row("R4-data-message", {"errors": ("deep",)}, (error(name="N", data={"message": "deep"}),)),
    Row("R4-name", {"errors": ("OnlyName",)}, (error(name="OnlyName"),)),
    Row("R4-code", {"errors": ("E_CODE",)}, (error(code="E_CODE"),)),
    Row("R4-json-fallback", {"errors": ('{"x":1}',)}, (error(x=1),)),
    Row("R5-deviation-a-tool-error-fails-nothing", {**OK, "errors": (), "tool_errors": ("File not found",)},
        (START, tool_error("File not found"), finish("tool-calls"), text("ok", "m2"), finish(message="m2"))),
    Row("R6-tool-error-is-kept-apart", {"errors": (), "tool_errors": ("File not found",)},
        (tool_error("File not found"),)),
    # R7: clean completion
    Row("R7-stop-after-tool-calls", {**OK, "finish_reason": "stop"},
        (START, finish("tool-calls"), text("ok", "m2"), finish(message="m2"))),
    Row("R7-max-turns-is-not-clean", failed("step_limit_reached", finish_reason="max_turns"),
        (START, text("x"), finish("max_turns"))),
    # where the session id comes from
    Row("R8-session-of-any-event", {"session_id": SESSION}, (START,)),
    Row("R8-empty-output", {"session_id": None, "summary": "", "errors": ()}, ()),
    Row("R8-malformed-lines-are-skipped", {**OK, "session_id": SESSION, "unparsed_lines": 2},
        ("not json", *HAPPY, "{broken")),
    # R9: step limit
    *[Row(f"R9-{reason}", failed("step_limit_reached", clear_session=True), (START, text("x"), finish(reason)))
      for reason in ("max_turns", "max_steps", "step_limit", "MAX_STEPS")],
    Row("R9-end-turn-is-none", {"clear_session": False}, (START, text("x"), finish("end_turn"))),
    Row("R9-no-finish-is-none", {"clear_session": False}, (START, text("x"))),
    Row("R9-empty-is-none", {"clear_session": False}, ()),
    # R10: unknown session
    Row("R10-unknown-session", UNKNOWN, stderr=f"Error: unknown session {SESSION}", exit_code=1, resumed=SESSION),
    Row("R10-session-not-found", UNKNOWN, stderr="\x1b[91m\x1b[1mError: \x1b[0mSession not found", exit_code=1,
        resumed=SESSION),
    Row("R10-session-not-found-exit-0", UNKNOWN, stderr=f'  message: "Session not found: {SESSION}",', resumed=SESSION),
    Row("R10-resource-not-found", UNKNOWN, resumed=SESSION, exit_code=1,
        stderr=f"NotFoundError: Resource not found: /home/a/.local/share/opencode/storage/session/p/{SESSION}.json"),
    Row("R10-no-session-in-an-error-event", UNKNOWN, (event("error", error={"message": "no session"}),), exit_code=1,
        resumed=SESSION),
    Row("R10-upper-case", UNKNOWN, stderr="ERROR: UNKNOWN SESSION", exit_code=1, resumed=SESSION),
    Row("R10-as-stray-line-on-stdout", UNKNOWN, ("Session not found",), exit_code=1, resumed=SESSION),
    Row("R10-ordinary-text-is-none", failed("adapter_failed", unknown_session=False, clear_session=False),
        (START, text("The session was not found; unknown session; no session"), finish("tool-calls")), exit_code=1,
        resumed=SESSION),
    Row("R10-deviation-module-not-found-is-none", failed("opencode_error", clear_session=False),
        (START, text("x"), tool_error("ModuleNotFoundError: no session"), error(message="ModuleNotFoundError: x")),
        exit_code=1, resumed=SESSION),
    Row("R10-deviation-not-without-a-resumed-session", failed("opencode_start_failed", clear_session=False),
        stderr="Error: Session not found", exit_code=1),
    # R11: context overflow
    Row("R11-name", failed("context_overflow"), (error(name="ContextOverflowError", data={"message": "too long"}),),
        exit_code=1),
    Row("R11-nested-response-body", failed("context_overflow"), exit_code=1, stdout=(
        error(name="APIError", data={"message": "no", "statusCode": 400,
                                     "responseBody": '{"error": {"code": "context_length_exceeded"}}'}),)),
    Row("R11-bare-code", failed("context_overflow"), (error(code="context_length_exceeded"),), exit_code=1),
    Row("R11-other-error-is-none", failed("opencode_error"), (error(name="Other", data={"message": "no"}),),
        exit_code=1),
    Row("R11-other-event-is-none", failed("adapter_failed"),
        (START, text('{"code":"context_length_exceeded"}'), finish("tool-calls")), exit_code=1),
    Row("R11-mention-in-text-is-none", failed("opencode_error"),
        (error(message="mentions context_length_exceeded in passing"),), exit_code=1),
    Row("R11-empty-is-none", failed("opencode_start_failed"), exit_code=1),
    # R12: stream EOF
    Row("R12-after-clean-steps", failed("stream_eof_transient"),
        (START, text("x"), finish("tool-calls"), UNKNOWN_ERROR_EOF), exit_code=1),
    Row("R12-no-eof-error", OK, HAPPY),
    Row("R12-other-unknown-error", failed("opencode_error"),
        (error(name="UnknownError", data={"message": "something else"}),), exit_code=1),
    # R13: type dereference
    *[Row(f"R13-{name}", failed("opencode_response_type_crash"), (error(name="UnknownError", data={"message": words}),),
          exit_code=1)
      for name, words in {
          "jsc": "undefined is not an object (evaluating 'item.type')",
          "any-variable": "undefined is not an object (evaluating 'chunk.response.type')",
          "v8": "Cannot read properties of undefined (reading 'type')",
          "v8-old": "TypeError: Cannot read property of undefined, reading 'type'"}.items()],
    Row("R13-unrelated", failed("opencode_error"), (error(message="undefined is not a function"),), exit_code=1),
    Row("R13-other-property", failed("opencode_error"),
        (error(message="undefined is not an object (evaluating 'item.kind')"),), exit_code=1),
    Row("R13-deviation-a-quote-in-text-is-none", failed("adapter_failed"),
        (START, text("undefined is not an object (evaluating 'item.type')"), finish("tool-calls")), exit_code=1),
    # outcomes
    Row("E43-happy-path", {**OK, "session_id": SESSION, "summary": "All done.", "clear_session": False, "errors": (),
                           "usage": Usage(input_tokens=100, output_tokens=50, cached_input_tokens=20),
                           "cost_usd": Decimal("0.002")}, HAPPY, reason="Completed"),
    Row("E47-unknown-session", UNKNOWN, (error(message=f"unknown session {SESSION}"),), exit_code=1, resumed=SESSION),
    Row("E48-session-not-found", UNKNOWN, (error(message="session not found"),), exit_code=1, resumed=SESSION),
    Row("E49-unrelated-failure", failed("opencode_error", clear_session=False), (error(message="disk on fire"),),
        exit_code=1, resumed=SESSION),
    Row("E50-stream-eof", failed("stream_eof_transient", session_id=SESSION, clear_session=False),
        (START, UNKNOWN_ERROR_EOF), exit_code=1, message_has=("stream truncated",)),
    Row("E57-exit-2", failed("adapter_failed", exit_code=2), (START, text("x"), finish("tool-calls")), exit_code=2,
        message_has=("exit", "2")),
    Row("E57-deviation-exit-2-after-a-stop", failed("adapter_failed", exit_code=2), HAPPY, exit_code=2),
    Row("E58-error-event-at-exit-0", failed("opencode_error", exit_code=1), (error(message="boom"),),
        message_has=("boom",)),
    Row("E59-pod-missing", failed("k8s_exit_unknown", exit_code=None), exit_code=None),
    Row("E59-deviation-output-without-an-exit-code-is-no-success", failed("k8s_exit_unknown", exit_code=1), HAPPY,
        exit_code=None),
    Row("E60-oom-killed", failed("oom_killed", exit_code=137), HAPPY[:2], exit_code=137, reason="OOMKilled",
        message_has=("Pod exited: OOMKilled (exit 137)",)),
    Row("E60-deviation-oom-killed-after-a-stop", failed("oom_killed", exit_code=137), HAPPY, exit_code=137,
        reason="OOMKilled"),
    Row("E61-reason-error", failed("adapter_failed", exit_code=1), (START,), exit_code=1, reason="Error",
        message_has=("Pod exited: Error (exit 1)",)),
    Row("E61-error-text-comes-first", failed("opencode_error"), (error(message="boom"),), exit_code=1, reason="Error",
        message_has=("boom; Pod exited: Error (exit 1)",)),
    Row("E62-no-reason", failed("adapter_failed"), (START,), exit_code=1, message_has=("code 1",)),
    Row("E65-session-and-no-output", failed("llm_api_error", exit_code=1), (START, EMPTY),
        message_has=("empty response",)),
    Row("E65-deviation-only-a-step-start", failed("output_lost", exit_code=1), (START,)),
    Row("E66-output-tokens", OK, (START, finish())),
    Row("E67-an-error-is-not-an-empty-answer", failed("opencode_error"), (START, error(message="quota exceeded")),
        message_has=("quota",)),
    Row("E67-quota-by-status", failed("provider_quota"),
        (error(name="APIError", data={"message": "quota exceeded", "statusCode": 429}),), exit_code=1,
        message_has=("quota",)),
    Row("E68-no-session-is-not-an-empty-answer", failed("output_lost", session_id=None)),
    Row("E72-max-steps", failed("step_limit_reached", clear_session=True), (START, text("x"), finish("max_steps")),
        message_has=("step limit",)),
    Row("E72-a-limit-before-the-end-only-clears", {**OK, "clear_session": True},
        (START, finish("max_steps"), text("ok", "m2"), finish(message="m2"))),
    Row("6.1-clean-completion-despite-exit-1", {**OK, "clear_session": False}, HAPPY, exit_code=1),
]  # fmt: skip


def test_every_row_gives_its_report() -> None:
    wrong = {row.id: differences for row in ROWS if (differences := list(differing(row)))}
    assert not wrong, wrong


def differing(row: Row) -> Iterator[str]:
    report = row.report()
    code = report.failure.code if report.failure else None
    found = {key: code if key == "code" else getattr(report, key) for key in row.expected}
    if found != row.expected:
        yield f"it has {found} instead of {row.expected}"
    message = report.failure.message if report.failure else ""
    if code is not None and not message:
        yield "its failure has no message"
    yield from (
        f"its message {message!r} lacks {words!r}" for words in row.message_has if words.lower() not in message.lower()
    )


def test_e52_an_exit_code_of_0_outlives_a_deadline() -> None:
    fold = Fold()
    for line in HAPPY:
        fold.add(file_line(json.dumps(line).encode()))
    deadline = RunTimeout.as_failure("Timed out after 60s")
    report = fold.report(ContainerEnd(exit_code=0), stopped=deadline)
    assert report.failure is None
    assert "timeout" in report.warnings[0]
    assert fold.report(ContainerEnd(exit_code=143), stopped=deadline).failure == deadline


THOUSAND = Usage(input_tokens=1000, output_tokens=1000, cached_input_tokens=1000)


@pytest.mark.parametrize(
    ("model", "usage", "expected"),
    [
        pytest.param("anthropic/claude-opus-5", THOUSAND, "0.0305", id="R14-opus-5-list-rates"),
        pytest.param("openai/gpt-5.6-sol", THOUSAND, "0.0355", id="R14-sol"),
        pytest.param("openai/gpt-5.6-terra", THOUSAND, "0.01775", id="R14-terra"),
        pytest.param("openai/gpt-5.6-luna", THOUSAND, "0.0071", id="R14-luna"),
        pytest.param("openai/gpt-5.4-mini", THOUSAND, "0.00255", id="R14-known-model"),
        pytest.param("openai/gpt-9", THOUSAND, None, id="R14-unknown-model"),
        pytest.param("openai/gpt-5.6-sol", Usage(), None, id="R14-zero-usage"),
        pytest.param("", THOUSAND, None, id="R14-no-model"),
    ],
)
def test_prices(model: str, usage: Usage, expected: str | None) -> None:
    assert cost_of(model, usage, None).usd == (Decimal(expected) if expected else None)


def test_r14_all_rates_are_positive_and_plausible() -> None:
    for price in PRICES.values():
        assert 0 < price.cached_input < price.input < price.output <= 100


def test_r14_the_table_serves_only_when_opencode_named_no_cost() -> None:
    model = "openai/gpt-5.5"
    assert cost_of(model, THOUSAND, Decimal("0.5")) == Cost(Decimal("0.5"))
    assert cost_of(model, THOUSAND, Decimal(0)) == Cost(Decimal("0.0153"), estimated=True)
    assert cost_of(model, THOUSAND, None) == Cost(Decimal("0.0153"), estimated=True)
    assert cost_of("openai/gpt-9", THOUSAND, Decimal(0)) == Cost(Decimal(0))
    assert cost_of("openai/gpt-9", THOUSAND, None) == Cost(None)
