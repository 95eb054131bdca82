"""The driver's folder: what it is to do, where it is, and how it ended.

Only the sidecar writes there, so what is in it can be believed.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from agent_runs.pod.sidecar.drivers.lines import prose

TURN, STATE, END, EVENTS = "turn.json", "state", "end", "events"
MAX_DETAIL = 1000
MAX_PROMPT = 64 * 1024 * 1024


def prompt_text(path: str) -> str:
    """Return the prompt, of which the driver's folder has a copy.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:  # noqa: PTH123 - pathlib is not needed here
        return file.read(MAX_PROMPT).decode("utf-8", "replace")


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

    def write(self, folder: str) -> None:
        """Write it.

        Raises:
            OSError: the disk is full.
        """
        replace(f"{folder}/{END}", {**self._asdict(), "detail": prose(self.detail, MAX_DETAIL)})


def has_ended(folder: str) -> bool:
    """Return whether there is an end."""
    return os.access(f"{folder}/{END}", os.F_OK)


def replace(path: str, content: dict[str, Any]) -> None:
    """Replace a file by one with this JSON, which is on the disk then.

    Raises:
        OSError: the disk is full.
    """
    with open(path + ".new", "w", encoding="utf-8") as file:  # noqa: PTH123 - as above
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)  # noqa: PTH105 - as above


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
        end.write(folder)
