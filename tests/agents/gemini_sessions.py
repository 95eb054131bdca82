"""Gemini's session files, made fit for its next start."""

from pathlib import Path
from typing import Final

_LONG_AGO: Final = "session-2000-01-01T00-00"
_SHORT_ID: Final = 8


def protect(home: Path) -> None:
    """Keep one file per session, under a name that no start chooses.

    Gemini 0.61 names a file after the minute and the first characters of the session's id. `session/load` begins a
    new one of the same id: within the minute it overwrites the session, later it leaves a stub behind, for which the
    next start's cleanup deletes every file of that id (unless `general.sessionRetention.enabled` is false).
    """
    sessions: dict[Path, list[Path]] = {}
    for path in (home / ".gemini" / "tmp").glob("*/chats/session-*.jsonl"):
        protected = path.with_name(f"{_LONG_AGO}-{path.stem[-_SHORT_ID:]}.jsonl")
        sessions.setdefault(protected, []).append(path)
    for protected, paths in sessions.items():
        *stubs, whole = sorted(paths, key=lambda path: path.stat().st_size)
        for stub in stubs:
            stub.unlink()
        whole.rename(protected)
