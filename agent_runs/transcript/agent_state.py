"""What OpenCode is doing, by the lines that it writes: what is progress, and what it waits for.

Its events show what has ended. What has begun is in its log (`--print-logs`): `message=loop … step=N` begins a step,
`message=stream` is a request to the provider, and again for each retry, `message=evaluated permission=bash` is a tool
call that may run. Of a server, events show that a tool has begun and that text grows, too. Any other line is progress
only the first time it appears. Source: OpenCode 1.18.33, observed.
"""

import hashlib
import re
from collections import OrderedDict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, Literal

from agent_runs.transcript.events import plain_text
from agent_runs.transcript.lines import Line

HEAD: Final = 600
"""Bytes of a line that are looked at."""
KIND_HEAD: Final = 300
"""Bytes of a line that tell whether it is like another one."""
JUDGED: Final = 200
"""Lines of one call that are compared with earlier ones; further ones count as progress, because nobody knows."""
KINDS: Final = 1024
"""Kinds of lines that are remembered, the newest ones."""
TOOLS: Final = 8
MAX_REPEATED_LINE: Final = 200
"""Characters of a repeated line in a message."""
SUB_AGENT: Final = "task"
_EVENT: Final = re.compile(
    rb'\s*\{\s*"type"\s*:\s*"(step_start|text|reasoning|tool_use|step_finish|tool_running|text_growth|session_status|subagent_step|question_asked|question_answered)"'
)
_QUESTION: Final = re.compile(rb'"question":\{"id":"([^"\\]{1,128})"')
_STOP: Final = re.compile(rb'"reason"\s*:\s*"stop"')
_RETRY: Final = re.compile(rb'"status":"retry"')
_TOOL: Final = re.compile(rb'"tool"\s*:\s*"([\w.-]{1,80})"')
_LOG: Final = re.compile(
    rb" message=(?:loop session\.id=(?P<session>\w{1,80}) step=(?P<step>\d{1,9})\b"
    rb'|evaluated permission="?(?P<permission>[\w.*/-]{1,80})|(?P<request>stream )providerID=)'
)
_VARIABLE: Final = re.compile(rb"(?:ses|msg|prt|call)_\w+|\b[0-9a-fA-F]{8,}\b|\d+")
_PREFIX: Final = re.compile(r"^timestamp=\S+ level=\w+ (?:run=\S+ )?")
_TIMESTAMP: Final = re.compile(rb"timestamp=(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?)Z ")
_NO_TOOLS: Final = frozenset({"external_directory", "doom_loop"})
"""Permissions that are asked in addition to a tool's own."""
_PERMISSIONS: Final = {"write": "edit", "patch": "edit", "multiedit": "edit"}
"""Permission of a tool, where it has another name."""

Waiting = Literal["provider", "tool", "unknown"]


class AgentState:
    """What OpenCode is doing. Its memory is bounded, whatever the output.

    Events and log are two streams, so an event may come after log lines that were written later.

    Attributes:
        has_answered: the last step has ended with an answer, and nothing was written or requested after it.
    """

    def __init__(self) -> None:
        self._repeated = b""
        self._has_log = False
        self._main = b""
        self._requested = self._answering = self._began = self.has_answered = False
        self._tools: list[str] = []
        self._questions: set[bytes] = set()
        self._compared = 0
        self._kinds: OrderedDict[bytes, None] = OrderedDict()
        self._first: datetime | None = None  # by the agent's clock, as are all times in its log
        self._last_progress: datetime | None = None

    def add(self, lines: Sequence[Line]) -> bool:
        """Take the next lines; whether any of them is progress of the model or of a tool."""
        progressed, self._compared = False, 0
        for line in lines:  # each is taken, also after one that is progress
            progressed = (self._event(line.data) if line.stream == "stdout" else self._log(line.data)) or progressed
        return progressed

    @property
    def repeated_line(self) -> str:
        """The newest line that was no progress, or its beginning."""
        return _PREFIX.sub("", plain_text(self._repeated, KIND_HEAD))[:MAX_REPEATED_LINE]

    @property
    def tools(self) -> tuple[str, ...]:
        """Tools that have begun and, as far as is known, not ended; those of sub-agents too."""
        return tuple(self._tools)

    @property
    def waits_for(self) -> Waiting:
        """What the next progress must come from."""
        if any(tool != SUB_AGENT for tool in self._tools):
            return "tool"
        if self._requested:
            return "provider"
        return "tool" if self._tools else "unknown"

    @property
    def is_asking(self) -> bool:
        """Whether it waits for the answer of a person."""
        return bool(self._questions)

    @property
    def may_run_tool(self) -> bool:
        """Whether a process may be working for OpenCode: not while it only waits for an answer to begin."""
        if self.waits_for == "provider":
            return self._answering
        return self._has_log

    @property
    def last_progress(self) -> timedelta:
        """From the first line of the log to the last one that is progress; too short rather than too long."""
        if self._first is None or self._last_progress is None:
            return timedelta()
        return max(self._last_progress - self._first, timedelta())

    def _event(self, data: bytes) -> bool:
        event, self.has_answered = _EVENT.match(data[:HEAD]), False
        if event is None:
            return self._is_new(data)
        kind, began = event[1], self._began
        if kind == b"session_status":
            return self._status(data[:HEAD])
        if kind == b"subagent_step":
            return True
        if kind.startswith(b"question_"):
            return self._question(kind, data[:HEAD])
        self._answering = True
        self._began = kind == b"step_start"
        self.has_answered = kind == b"step_finish" and _STOP.search(data[:HEAD]) is not None
        if kind == b"tool_use":
            self._end_tool(data[:HEAD])
        elif kind == b"tool_running":
            self._begin_tool(_tool_name(data[:HEAD]))
        return not (self._began and began)  # a broken answer is tried again, and each one writes that a step begins

    def _question(self, kind: bytes, head: bytes) -> bool:
        found = _QUESTION.search(head)
        if found is not None and kind == b"question_asked" and len(self._questions) < TOOLS:
            self._questions.add(found[1])
        elif found is not None:
            self._questions.discard(found[1])
        return True

    def _end_tool(self, head: bytes) -> None:
        name = _tool_name(head)
        if name in self._tools:
            self._tools.remove(name)

    def _status(self, head: bytes) -> bool:
        """What a server reports of the session: that it waits to ask the provider again is no progress."""
        if _RETRY.search(head) is None:
            return self._is_new(head)
        self._requested, self._answering = True, False
        return False

    def _log(self, data: bytes) -> bool:
        progressed = self._judge(data[:HEAD])
        if progressed and (written := _written_at(data[:HEAD])) is not None:
            self._first = self._first or written
            self._last_progress = written
        return progressed

    def _judge(self, line: bytes) -> bool:
        found = _LOG.search(line) if b" message=" in line else None
        if found is None:
            self.has_answered = self.has_answered and self._has_log  # else it may be a request of another log
            return self._is_new(line)
        self._has_log = True
        if session := found["session"]:
            return self._begin_step(session, found["step"])
        if permission := found["permission"]:
            self._begin_tool(permission.decode())
            return True
        self._requested, self._answering, self.has_answered = True, False, False
        return self._is_new(line)

    def _begin_tool(self, name: str) -> None:
        if name and name not in _NO_TOOLS and name not in self._tools and len(self._tools) < TOOLS:
            self._tools.append(name)

    def _begin_step(self, session: bytes, step: bytes) -> bool:
        """A step begins, so the one before has ended with its tools; a sub-agent's step is part of a tool."""
        self._main = self._main or session
        self._tools = [] if session == self._main else [tool for tool in self._tools if tool == SUB_AGENT]
        self._requested = self._answering = self._began = False
        return self._is_new(b"%s %s" % (session, step), exact=True)

    def _is_new(self, line: bytes, *, exact: bool = False) -> bool:
        """Whether no line like this came before; numbers and identifiers make no difference unless `exact`."""
        head = line[:KIND_HEAD].strip()
        if not head:
            return False
        self._compared += 1
        if self._compared > JUDGED and not exact:
            return True
        kind = hashlib.blake2b(head if exact else _VARIABLE.sub(b"0", head), digest_size=16).digest()
        if kind in self._kinds:
            self._kinds.move_to_end(kind)
            self._repeated = head
            return False
        self._kinds[kind] = None
        if len(self._kinds) > KINDS:
            self._kinds.popitem(last=False)
        return True


def _tool_name(head: bytes) -> str:
    """The tool that an event is about, by the name of its permission."""
    found = _TOOL.search(head)
    name = found[1].decode() if found is not None else ""
    return _PERMISSIONS.get(name, name)


def _written_at(line: bytes) -> datetime | None:
    match = _TIMESTAMP.match(line)
    if match is None:
        return None
    try:
        return datetime.fromisoformat(match[1].decode())
    except ValueError:
        return None
