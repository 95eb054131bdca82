"""The fold over one attempt's output: from raw lines to a `Report`.

The state is bounded whatever the output: texts and errors are cut and counted, and only the latest identifiers are
remembered. The answer is the text of the last message that finished a step; a finished step is not the end of the
run, the end of the output is (compaction finishes one in the middle).
Source: OpenCode 1.18.33, observed.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Final, NamedTuple

import msgspec

from agent_runs.contracts.errors import Failure
from agent_runs.contracts.large_json import LARGE
from agent_runs.contracts.outcome import GAP_STREAM, SUMMARY_LIMIT, ContainerEnd, Interruption, Report, Usage
from agent_runs.transcript import verdict
from agent_runs.transcript.entries import begun_call
from agent_runs.transcript.events import (
    AGENT_VERSION,
    NO_PART,
    SERVER_EVENTS,
    SUBAGENT_STEP,
    Event,
    Part,
    Tokens,
    decode,
    decode_beginning,
    is_blank,
    printable,
    shortened,
    storable,
)
from agent_runs.transcript.lines import LINE_LIMIT, Line
from agent_runs.transcript.provider_errors import provider_error

RECENT_IDS: Final = 4096
OPEN_MESSAGES: Final = 8
OPEN_TOOLS: Final = 8
ERRORS: Final = 20
ERROR_LIMIT: Final = 1000
LAST_OUTPUT_LIMIT: Final = 200
SESSION_LIMIT: Final = 128
TOOL_NAME_LIMIT: Final = 80
VERSION_LIMIT: Final = 40
REASON_LIMIT: Final = 80
MAX_COUNT: Final = 2**53 - 1
"""The largest count kept: JavaScript's largest exact integer."""
COST_LIMIT: Final = 1e12
_TEXT_LIMIT: Final = 2 * SUMMARY_LIMIT
"""Characters that are read of one text: more than a summary has, since it may begin with blanks."""


class RepeatedCall(NamedTuple):
    """The newest tool call, and how often it was made, one directly after the other."""

    tool: str = ""
    times: int = 0


class Progress(NamedTuple):
    """What a person watching wants to see now. Bounded.

    Attributes:
        continues: no step has finished by `stop`, or something followed it.
        repeated: the newest tool call, and how often it was made in a row.
        context_tokens: of the largest prompt of a step: how much of the model's context is used. On a run's page.
    """

    session_id: str | None
    steps: int
    tool_calls: int
    usage: Usage
    cost_usd: Decimal | None
    last_output: str
    continues: bool
    repeated: RepeatedCall
    context_tokens: int


class _Recent:
    def __init__(self, size: int = RECENT_IDS) -> None:
        self._size = size
        self._seen: OrderedDict[str, None] = OrderedDict()

    def repeated(self, identifier: str | None) -> bool:
        if identifier is None:
            return False
        if identifier in self._seen:
            return True
        self._seen[identifier] = None
        if len(self._seen) > self._size:
            self._seen.popitem(last=False)
        return False


class _Repetition:
    """Counts how often the newest tool call was made in a row. A call whose input is not known repeats none."""

    def __init__(self) -> None:
        self.newest = RepeatedCall()
        self._call: tuple[str, bytes] | None = None

    def add(self, tool: str, input: msgspec.Raw | None) -> None:
        call = None if input is None else (tool, _comparable(bytes(input)))
        repeats = call is not None and call == self._call
        self.newest = RepeatedCall(tool[:TOOL_NAME_LIMIT], self.newest.times + 1 if repeats else 1)
        self._call = call


class _Texts:
    """The texts of one message, joined by a blank line, at most `SUMMARY_LIMIT` characters."""

    def __init__(self) -> None:
        self._text = ""

    def add(self, text: str) -> None:
        if len(self._text) <= SUMMARY_LIMIT and (trimmed := text[:_TEXT_LIMIT].strip()):
            self._text = f"{self._text}\n\n{trimmed}" if self._text else trimmed

    def joined(self) -> str:
        return shortened(storable(self._text), SUMMARY_LIMIT)


class _Meter:
    def __init__(self) -> None:
        self.cost: Decimal | None = None
        self.largest_prompt = 0
        self._fresh = self._written = self._reasoning = self._cache_read = self._cache_write = 0

    def add(
        self, tokens: Tokens | None, cost: float | None, context: float | None = None, *, own_prompt: bool = True
    ) -> None:
        """Add a step; the prompt of a sub-agent's is not in the context of the session.

        `context` is the context used, where the agent says it: the tokens may be of several requests.
        """
        if cost is not None and 0 <= cost <= COST_LIMIT:
            self.cost = (self.cost or Decimal(0)) + Decimal(repr(cost))
        if context is not None:
            self.largest_prompt = max(self.largest_prompt, _count(context))
        if tokens is None:
            return
        cache = tokens.cache
        fresh = _count(tokens.input)
        read, write = (_count(cache.read), _count(cache.write)) if cache is not None else (0, 0)
        self._fresh += fresh
        self._written += _count(tokens.output)
        self._reasoning += _count(tokens.reasoning)
        self._cache_read += read
        self._cache_write += write
        if own_prompt and context is None:
            self.largest_prompt = max(self.largest_prompt, fresh + read + write)

    @property
    def usage(self) -> Usage:
        return Usage(
            input_tokens=min(self._fresh, MAX_COUNT),
            output_tokens=min(self._written + self._reasoning, MAX_COUNT),
            cached_input_tokens=min(self._cache_read, MAX_COUNT),
            cache_write_tokens=min(self._cache_write, MAX_COUNT),
            reasoning_tokens=min(self._reasoning, MAX_COUNT),
        )


class Fold:
    """Takes OpenCode's raw lines as they come and can report at any time.

    Args:
        resumed_session: the id that was passed with `--session`, if one was.
    """

    def __init__(self, resumed_session: str | None = None) -> None:
        self._seen = verdict.Evidence(resumed_session or None)
        self._diagnostics = self._seen.diagnostics
        self._meter = _Meter()
        self._session: str | None = None
        self._latest_session: str | None = None
        self._unparsed = self._steps = self._tool_calls = 0
        self._texts: OrderedDict[str | None, _Texts] = OrderedDict()
        self._answer: _Texts | None = None
        self._latest_text = ""
        self._repetition = _Repetition()
        self._steps_seen, self._tools_seen = _Recent(), _Recent()
        self._tool_errors: list[str] = []
        self._own_steps = 0
        self._open_tools: dict[str | None, str] = {}
        self._last_at: datetime | None = None
        self._handlers: dict[str, Callable[[Event, Part], None]] = {
            "step_start": self._step_start,
            "text": self._text,
            "tool_use": self._tool_use,
            "tool_running": self._tool_running,
            "step_finish": self._step_finish,
            SUBAGENT_STEP: self._subagent_step,
            "error": self._error,
            "permission_rejected": self._rejected,
            AGENT_VERSION: self._agent_version,
        }

    def add(self, line: Line) -> None:
        """Take the next line of the output, whatever stream it is of; a gap is no output."""
        if line.stream == "stdout":
            self._last_at = line.at
            self._stdout(line.data, terminated=line.terminated)
        elif line.stream != GAP_STREAM:
            self._diagnostics.read(line.data)

    def _stdout(self, raw: bytes, *, terminated: bool) -> None:
        """One line of stdout. Its bytes alone tell whether it is cut, so it does not matter who kept it."""
        event = decode(raw)
        if event is None:
            event = decode_beginning(raw)
            self._seen.cut_lines += event is not None or len(raw) >= LINE_LIMIT
            self._seen.half_line = self._seen.half_line or (not terminated and raw.lstrip().startswith(b"{"))
        if event is None:
            self._stray(raw)
            return
        self._seen.events += event.type not in SERVER_EVENTS
        if event.session_id != self._latest_session:
            self._name_session(event.session_id)
        handle = self._handlers.get(event.type)
        if handle is not None:
            handle(event, event.part or NO_PART)

    @property
    def session_id(self) -> str | None:
        """OpenCode's session: from its first event, else from its log."""
        return self._session or self._diagnostics.session_id

    @property
    def progress(self) -> Progress:
        return Progress(
            session_id=self.session_id,
            steps=self._steps,
            tool_calls=self._tool_calls,
            usage=self._meter.usage,
            cost_usd=self._meter.cost,
            last_output=self._last_output(),
            continues=self._seen.open_step or self._seen.reason != verdict.STOP,
            repeated=self._repetition.newest,
            context_tokens=min(self._meter.largest_prompt, MAX_COUNT),
        )

    @property
    def interruption(self) -> Interruption:
        """What the agent has done so far, and the tools at work."""
        return Interruption(steps=self._own_steps, at=self._last_at, tools=tuple(self._open_tools.values()))

    def report(
        self,
        end: ContainerEnd,
        *,
        stopped: Failure | None = None,
        missing: verdict.Missing = "nothing",
        verified: bool = False,
        agent: str = "OpenCode",
    ) -> Report:
        """What the output so far and the container's end mean together. Does not change the fold.

        Args:
            end: the container's own end.
            stopped: why we stopped the agent, if we did.
            missing: whether output that OpenCode wrote could not be had, and where.
            verified: the receipt proves that all of the output is here.
            agent: the title of the agent that wrote this.
        """
        seen, usage, summary = self._seen, self._meter.usage, self._summary()
        evidence = replace(
            seen,
            agent=agent,
            stopped=stopped,
            missing=missing,
            verified=verified,
            resumed_seen=seen.resumed_seen or self._diagnostics.session_id == seen.resumed_session,
            has_output=usage.output_tokens > 0 or self._tool_calls > 0 or bool(summary),
        )
        judgement = verdict.judge(evidence, end)
        return Report(
            failure=judgement.failure,
            warnings=judgement.warnings,
            session_id=self.session_id,
            usage=usage,
            cost_usd=self._meter.cost,
            last_context_tokens=min(self._meter.largest_prompt, MAX_COUNT),
            steps=self._steps,
            tool_calls=self._tool_calls,
            finish_reason=seen.reason,
            summary="" if self._diagnostics.compacts else summary,
            errors=tuple(seen.errors),
            tool_errors=tuple(self._tool_errors),
            unknown_session=judgement.unknown_session,
            clear_session=judgement.clear_session,
            stayed=judgement.stayed,
            exit_code=judgement.exit_code,
            last_output=self._last_output(),
            events=seen.events,
            unparsed_lines=self._unparsed,
            agent_version=self._diagnostics.version,
            refused=tuple(self._diagnostics.permissions),
        )

    def _summary(self) -> str:
        """The answer; without any finished message, the text until then."""
        if self._answer is not None:
            return self._answer.joined()
        if self._seen.finished or not self._texts:
            return ""
        return next(reversed(self._texts.values())).joined()

    def _last_output(self) -> str:
        lines = self._latest_text.strip().splitlines()
        return printable(lines[-1], LAST_OUTPUT_LIMIT) if lines else ""

    def _stray(self, raw: bytes) -> None:
        if not is_blank(raw):
            self._unparsed += 1
            self._diagnostics.read(raw)

    def _name_session(self, session_id: str | None) -> None:
        self._latest_session = session_id
        if not session_id:
            return
        if self._session is None:
            self._session = printable(session_id, SESSION_LIMIT) or None
        self._seen.resumed_seen = self._seen.resumed_seen or session_id == self._seen.resumed_session

    def _step_start(self, _event: Event, _part: Part) -> None:
        self._seen.started = self._seen.open_step = True

    def _text(self, _event: Event, part: Part) -> None:
        self._seen.started = self._seen.open_step = True
        if part.text is None or part.synthetic:
            return
        self._texts_of(part.message_id).add(part.text)
        self._remember_text(part.text)

    def _tool_running(self, _event: Event, part: Part) -> None:
        if len(self._open_tools) < OPEN_TOOLS:
            self._open_tools[part.call_id] = begun_call(part.tool, part.input, part.title)

    def _tool_use(self, _event: Event, part: Part) -> None:
        self._seen.started = self._seen.open_step = True
        self._open_tools.pop(part.call_id, None)
        if self._tools_seen.repeated(part.call_id or part.id):
            return
        self._tool_calls = min(self._tool_calls + 1, MAX_COUNT)
        tool, state = part.tool or "tool", part.state
        self._repetition.add(tool, state.input if state is not None else None)
        if state is not None and state.status == "error":
            self._tool_error(tool, state.error or "no reason given")
        else:
            title = state.title if state is not None else None
            self._remember_text(
                f"{tool[:TOOL_NAME_LIMIT]}: {title[:LAST_OUTPUT_LIMIT]}" if title else tool[:TOOL_NAME_LIMIT]
            )

    def _tool_error(self, tool: str, error: str) -> None:
        if _is_rejection(error):
            self._seen.rejected_tool = printable(tool, TOOL_NAME_LIMIT)
        _keep_error(self._tool_errors, error)
        self._remember_text(f"{tool[:TOOL_NAME_LIMIT]} failed: {error[:LAST_OUTPUT_LIMIT]}")

    def _step_finish(self, _event: Event, part: Part) -> None:
        if self._steps_seen.repeated(part.id):
            return
        self._own_steps = min(self._own_steps + 1, MAX_COUNT)
        self._open_tools.clear()
        self._seen.started = self._seen.finished = True
        self._seen.open_step = False
        self._steps = min(self._steps + 1, MAX_COUNT)
        self._seen.reason = shortened(storable(part.reason), REASON_LIMIT) if part.reason else None
        self._seen.limit_reached = self._seen.limit_reached or verdict.is_step_limit(self._seen.reason)
        self._meter.add(part.tokens, part.cost, part.context)
        if part.message:
            self._texts_of(part.message_id).add(part.message)
        texts = self._texts.pop(part.message_id, None)
        if texts is not None:
            self._answer = texts
        if self._seen.reason == verdict.STOP:
            self._seen.pending_errors.clear()

    def _subagent_step(self, _event: Event, part: Part) -> None:
        """It is used and paid for as any step, and says nothing about how the agent itself goes on."""
        if not self._steps_seen.repeated(part.id):
            self._steps = min(self._steps + 1, MAX_COUNT)
            self._meter.add(part.tokens, part.cost, own_prompt=False)

    def _error(self, event: Event, _part: Part) -> None:
        error = provider_error(event.error if event.error is not None else event.message)
        if len(self._seen.pending_errors) < ERRORS:
            self._seen.pending_errors.append(error)
        _keep_error(self._seen.errors, error.text)
        self._remember_text(error.text)

    def _rejected(self, event: Event, _part: Part) -> None:
        if isinstance(event.permission, str) and isinstance(event.patterns, str):
            by = f", rejected by {event.by}" if isinstance(event.by, str) else ""
            self._diagnostics.reject(f"{event.permission} ({event.patterns}){by}")

    def _agent_version(self, event: Event, _part: Part) -> None:
        if isinstance(event.version, str):
            self._diagnostics.version = printable(event.version, VERSION_LIMIT)

    def _texts_of(self, message_id: str | None) -> _Texts:
        texts = self._texts.get(message_id)
        if texts is None:
            texts = self._texts[message_id] = _Texts()
            if len(self._texts) > OPEN_MESSAGES:
                self._texts.popitem(last=False)
        return texts

    def _remember_text(self, text: str) -> None:
        """Keep the end of `text`; it is made printable only when somebody reads it."""
        self._latest_text = text[-4 * LAST_OUTPUT_LIMIT :]


def _count(value: float) -> int:
    """A number of tokens: what is negative counts as none."""
    if 0 < value < MAX_COUNT:
        return int(value)
    return MAX_COUNT if value > 0 else 0


def _keep_error(errors: list[str], text: str) -> None:
    if len(errors) < ERRORS:
        errors.append(printable(text, ERROR_LIMIT))


def _is_rejection(error: str) -> bool:
    """Whether OpenCode rejected a permission because nobody could answer (its messages of 1.2 to 1.18)."""
    return error.startswith(("The user rejected permission to use this specific tool call", "PermissionRejectedError"))


def _comparable(arguments: bytes) -> bytes:
    """The same whatever the order of an input's keys, unless the input is very long."""
    if len(arguments) > LARGE:
        return hashlib.sha256(arguments).digest()
    try:
        return msgspec.json.encode(msgspec.json.decode(arguments), order="deterministic")
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return arguments
