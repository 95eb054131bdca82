"""What OpenCode writes besides its events: log lines, warnings and start-up errors on stderr, stray text on stdout.

Log lines (`--print-logs`) are key=value with quoted, escaped values, so text of an agent inside them stays inside its
quotes. The one line an agent can forge is what follows a line break within its own `permission requested: …` command,
and that needs a running session; the verdict therefore reads "Session not found" only when no step ever started.
All state is bounded.
"""

import re
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from agent_runs.transcript.events import plain_text, shortened

DIAGNOSTIC_LIMIT: Final = 2000
FIRST_LINES: Final = 12
LAST_LINES: Final = 12
MENTIONS: Final = 16

_LOG: Final = re.compile(r"timestamp=\S+ level=(?P<level>[A-Z]+) ")
_OLD_LOG: Final = re.compile(r"(?P<level>DEBUG|INFO|WARN|ERROR) +\d{4}-\d\d-\d\dT")
_VALUE: Final = r'(?:"(?P<quoted>(?:[^"\\]|\\.)*)"?|(?P<plain>\S*))'
_ESCAPED: Final = re.compile(r"\\(.)")
_PERMISSION: Final = re.compile(r"!? *permission requested: (?P<what>.+?)(?:; auto-rejecting)?$")
_SESSION_MISSING: Final = re.compile(
    r"""(?:message:\s*")?(?:\w*error:\s*)*(?:
        (?:unknown|no)\s+session\b(?!\s+(?:token|key|credential|cookie|secret))
      | session(?:\s+["']?ses\w*["']?)?\s+not\s+found\b
      | resource\ not\ found:.*[/\\]session[/\\].*\.json
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_UNWRITABLE: Final = re.compile(r"(?:EPIPE|ENOSPC): .*\bwrite$")
_HELP_OF_2: Final = "Run OpenCode with a message"
_NOISE: Final = re.compile(r"at .*\(.*\)$|Bun v\d|\d+ \| |~~|\^+$|Performing one time database|sqlite-migration:")
_OPENCODE_SESSION_ID: Final = re.compile(r"ses_\w{1,64}")


@dataclass
class Diagnostics:
    """What was learned from lines that are no events.

    Attributes:
        session_id: the run's own session, from the log; sub-agents' sessions are not it.
        session_missing: a line reports that the session was not found.
        compacts: the newest request of the run's own session is for a summary of the conversation, not for a step.
        permissions: what OpenCode asked for and rejected itself, such as `bash (make)`.
        causes: the cause behind an `err_…` reference of an "Unexpected server error".
        unwritable: why OpenCode could not write its output.
        refuses_options: it printed the help of OpenCode 2, which does not know our options.
        log_errors: texts of ERROR log lines.
    """

    session_id: str | None = None
    version: str | None = None
    session_missing: bool = False
    compacts: bool = False
    permissions: list[str] = field(default_factory=list)
    causes: dict[str, str] = field(default_factory=dict)
    unwritable: str | None = None
    refuses_options: bool = False
    log_errors: deque[str] = field(default_factory=lambda: deque(maxlen=4))
    _head: list[str] = field(default_factory=list)
    _tail: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))

    def read(self, raw: bytes) -> None:
        line = plain_text(raw, DIAGNOSTIC_LIMIT)
        if not line:
            return
        log = _LOG.match(line) or _OLD_LOG.match(line)
        if log is not None:
            self._log(log["level"], line)
        elif (permission := _PERMISSION.match(line)) is not None:
            _add(self.permissions, permission["what"])
        else:
            self._text(line)

    def reject(self, permission: str) -> None:
        """Take a permission that was rejected, such as `bash (make)`."""
        if line := plain_text(permission.encode("utf-8", errors="replace"), DIAGNOSTIC_LIMIT):
            _add(self.permissions, line)

    def text(self, limit: int) -> str:
        """What is useful to a person: no log lines, no stack frames, no help page; the log's errors if nothing else."""
        lines = [*self._head, *self._tail]
        if lines and lines[0].startswith("opencode run [message"):
            return "OpenCode did not accept its arguments and printed its help"
        useful = [line for line in lines if not _NOISE.match(line)] or list(self.log_errors)
        return shortened("\n".join(useful), limit)

    def _text(self, line: str) -> None:
        if line == _HELP_OF_2:
            self.refuses_options = True
        if _SESSION_MISSING.match(line):
            self.session_missing = True
        if self.unwritable is None and _UNWRITABLE.match(line):
            self.unwritable = line
        (self._head if len(self._head) < FIRST_LINES else self._tail).append(line)

    def _log(self, level: str, line: str) -> None:
        message = _field(line, "message")
        if message == "created" and _field(line, "parentID") in {None, "undefined"}:
            self.session_id = self.session_id or _session(_field(line, "id"))
            self.version = self.version or _field(line, "version")
        elif message == "loop":
            self.session_id = self.session_id or _session(_field(line, "session.id"))
        elif message == "stream":
            self._request(line)
        elif level == "ERROR":
            self._error(line)

    def _request(self, line: str) -> None:
        is_own = self.session_id in {None, _field(line, "session.id")}
        if is_own and _field(line, "agent") != "title":
            self.compacts = _field(line, "agent") == "compaction"

    def _error(self, line: str) -> None:
        cause = _field(line, "error") or _field(line, "cause") or _field(line, "error.error")
        if cause is None:
            return
        self.log_errors.append(cause)
        reference = _field(line, "ref")
        if reference and len(self.causes) < MENTIONS:
            self.causes.setdefault(reference, cause)


def reports_missing_session(text: str) -> bool:
    """Whether an error's text begins with the report that a session does not exist.

    Paperclip's built-in adapters look for the same phrases anywhere in the transcript; there a `ModuleNotFoundError`
    is enough.
    """
    return _SESSION_MISSING.match(text.strip()) is not None


def _add(mentions: list[str], mention: str) -> None:
    if len(mentions) < MENTIONS and mention not in mentions:
        mentions.append(mention)


def _field(line: str, name: str) -> str | None:
    """The first value of `name` in a log line, unquoted."""
    match = re.search(rf" {re.escape(name)}={_VALUE}", line)
    if match is None:
        return None
    if match["plain"] is not None:
        return match["plain"]
    return _ESCAPED.sub(lambda escape: "\n" if escape[1] == "n" else escape[1], match["quoted"])


def _session(text: str | None) -> str | None:
    return text if text is not None and _OPENCODE_SESSION_ID.fullmatch(text) else None
