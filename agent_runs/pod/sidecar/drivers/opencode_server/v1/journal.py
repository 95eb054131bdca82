"""From the events of a session to the lines that `opencode run --format json --thinking` writes of them.

A pure function of the journal, in the order of `seq`: the same events make the same lines again, so a driver that was
killed knows from their number how many it had written. Source: OpenCode 1.18.33, read in its program and compared with
its output.
"""

from __future__ import annotations

from typing import Any

from agent_runs.pod.sidecar.drivers.lines import (
    LEFT_OUT,
    LEFT_OUT_TYPE,
    MAX_NAME,
    MAX_TOOLS,
    Line,
    dictionary,
    integer,
    text,
)
from agent_runs.pod.sidecar.drivers.opencode_server.turn import Answer, begun

MAX_TAKEN = 1024


class Journal:
    """Takes the events of one session; those before the prompt make no lines.

    Attributes:
        start: the `seq` before the prompt's first event; None until that was there.
        seq: of the newest event.
        taken: user messages behind the prompt.
    """

    def __init__(self, session: str, prompt: str, start: int | None = None, read_to: int = -1) -> None:
        self.start = start
        self.seq = read_to if start is None else start
        self.answer: Answer | None = None
        self.has_prompt = False
        self.taken: set[str] = set()
        self._session = session
        self._prompt = prompt
        self._running: dict[str, None] = {}

    def add(self, seq: int, kind: str, data: object) -> list[Line]:
        """Take the next event and return the lines it makes. Never raises."""
        self.seq = seq
        if data is LEFT_OUT:
            return [Line(LEFT_OUT_TYPE, {})] if self.has_prompt else []
        fields = dictionary(data)
        if kind == "message.updated.1":
            self._message(seq, dictionary(fields.get("info")))
        elif kind == "message.part.updated.1" and self.has_prompt:
            return self._part(dictionary(fields.get("part")))
        return []

    def _message(self, seq: int, info: dict[str, Any]) -> None:
        if info.get("id") == self._prompt:
            if self.start is None:
                self.start = seq - 1
            self.has_prompt = True
        elif self.has_prompt and info.get("role") == "user" and len(self.taken) < MAX_TAKEN:
            self.taken.add(text(info.get("id"), MAX_NAME))
        elif self.has_prompt and info.get("role") == "assistant":
            self.answer = Answer(
                message=text(info.get("id"), MAX_NAME),
                completed=bool(integer(dictionary(info.get("time")).get("completed"))),
                error=dictionary(info.get("error")) or None,
            )

    def _part(self, part: dict[str, Any]) -> list[Line]:
        kind = part.get("type")
        if part.get("sessionID") != self._session:
            return []
        if kind == "step-start":
            return [Line("step_start", {"part": part})]
        if kind == "step-finish":
            return [Line("step_finish", {"part": part})]
        if kind in ("text", "reasoning") and dictionary(part.get("time")).get("end"):
            return [Line(str(kind), {"part": part})]
        return self._tool(part) if kind == "tool" else []

    def _tool(self, part: dict[str, Any]) -> list[Line]:
        state, call = dictionary(part.get("state")), text(part.get("callID"), MAX_NAME)
        status = state.get("status")
        if status in ("completed", "error"):
            self._running.pop(call, None)
            return [Line("tool_use", {"part": part})]
        if status != "running" or call in self._running or len(self._running) >= MAX_TOOLS:
            return []
        self._running[call] = None
        return [Line("tool_running", {"part": begun(part, state, call)})]
