"""The calls of Paperclip's log as server-sent events that a reader can resume between any two calls."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from agent_runs.transcript.store import Line
from agent_runs.web.paperclip_log import Call, LogFormat, calls, session_id, tool

WRITE_BYTES: Final = 256 * 1024
"""Of events per write to a reader: the memory of a reader, beside the line that they are made of."""


class Cursor(NamedTuple):
    """The last call that a reader has: `part` of the calls for the line `sequence`."""

    sequence: int
    part: int

    @property
    def first_line(self) -> int:
        """The sequence after which a reader that has this call continues to read: its line may have further calls."""
        return max(self.sequence - 1, 0)


@dataclass
class LogEvents:
    """The events of one connection.

    An event's id is `<sequence>.<part>`; its data is `{"stream": …, "text": …}`, and `session` once, in the first event
    with a text after the agent's session id is known. `tool` is there when one begins, for people, or empty when one
    ends. Where a tool begins, or the last of some lines give no call, an event with the id `<sequence>.0` and neither
    stream nor text moves the reader's cursor.
    """

    log_format: LogFormat
    cursor: Cursor
    _session: str | None = None
    _session_sent: bool = False

    def encoded(self, page: Sequence[Line]) -> Iterator[bytes]:
        """The events for these lines, in pieces of about `WRITE_BYTES`.

        A piece of a long line takes long: call this outside the event loop.
        """
        pending = bytearray()
        for line in page:
            sent, at_work = False, tool(line)
            self._session = self._session or session_id(line)
            for part, call in enumerate(calls(line, self.log_format), 1):
                if (line.sequence, part) <= self.cursor:
                    continue
                sent = True
                pending += self._event(Cursor(line.sequence, part), call, at_work)
                if len(pending) >= WRITE_BYTES:
                    yield bytes(pending)
                    pending.clear()
            if not sent and (line is page[-1] or at_work) and line.sequence > self.cursor.sequence:
                pending += self._event(Cursor(line.sequence, 0), None, at_work)
        if pending:
            yield bytes(pending)

    def _event(self, cursor: Cursor, call: Call | None, at_work: str | None) -> bytes:
        fields = {} if call is None else call._asdict()
        if at_work is not None:
            fields["tool"] = at_work
        if call is not None and self._session and not self._session_sent:
            fields["session"] = self._session
            self._session_sent = True
        return b"id: %d.%d\ndata: %s\n\n" % (*cursor, msgspec.json.encode(fields))
