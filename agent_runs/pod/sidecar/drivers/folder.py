"""The driver's folder: what it is to do, where it is, and how it ended.

Only the sidecar writes there, so what is in it can be believed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable
from typing import Any, NamedTuple

from agent_runs.pod.sidecar.drivers.lines import prose

TURN, PROMPT, STATE, END, EVENTS = "turn.json", "prompt", "state", "end", "events"
MAX_DETAIL = 1000
MAX_PROMPT = 64 * 1024 * 1024
ABORTED_CODE = 128 + signal.SIGTERM


class End(NamedTuple):
    """How it ended.

    Attributes:
        code: what `opencode run` would have exited with.
        reason: the name of what kept it from ending by itself.
        detail: for people.
        seq: of the session's newest event, if all was read.
    """

    code: int
    reason: str | None = None
    detail: str = ""
    session: str | None = None
    seq: int | None = None


def aborted(session: str, *, sent: bool) -> End:
    """Return the end of a turn that SIGTERM ended.

    Args:
        sent: the prompt may have reached the agent.
    """
    return End(ABORTED_CODE, "aborted", "" if sent else "aborted before the prompt was sent", session or None)


def read_prompt(folder: str) -> str:
    """Return the prompt.

    Raises:
        OSError: it cannot be read.
    """
    with open(f"{folder}/{PROMPT}", "rb") as file:
        return file.read(MAX_PROMPT).decode("utf-8", "replace")


def read_json(folder: str, name: str) -> dict[str, Any]:
    """Return what is in a file.

    Raises:
        OSError, ValueError: there is none, or it is not JSON.
    """
    with open(f"{folder}/{name}", encoding="utf-8") as file:
        content: dict[str, Any] = json.load(file)
        return content


def read_state(folder: str) -> dict[str, Any]:
    """Return how far it is; nothing at its beginning.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    return read_json(folder, STATE) if os.path.exists(f"{folder}/{STATE}") else {}


def write_json(folder: str, name: str, content: dict[str, Any]) -> None:
    """Replace a file, whose content is on the disk then.

    Raises:
        OSError: the disk is full.
    """
    path = f"{folder}/{name}"
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)


def has_ended(folder: str) -> bool:
    return os.path.exists(f"{folder}/{END}")


def drive_to_end(folder: str, run: Callable[[], End], failed: Callable[[Exception], End]) -> None:
    """Do a turn, or the rest of it, unless there is an end; write the end that there is afterwards. Never raises.

    Args:
        failed: the end after a fault of the driver, or a full disk.
    """
    if has_ended(folder):
        return
    try:
        end = run()
    except Exception as error:  # noqa: BLE001 - whoever waits for the end must get one
        end = failed(error)
    with contextlib.suppress(OSError):
        write_json(folder, END, {**end._asdict(), "detail": prose(end.detail, MAX_DETAIL)})
