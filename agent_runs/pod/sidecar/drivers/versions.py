"""Which versions of an agent's program are driven: windows, each with the oldest and the newest that tests run.

A later version with the first number of the newest is driven as well: agents bring out several in a week.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

VERSION_UNSUPPORTED = "agent_version_unsupported"
Windows = Sequence[Sequence[str]]
_NUMBERS = re.compile(r"(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?")


def numbers(text: str) -> tuple[int, ...]:
    """The numbers of the version that a text names; nothing if it names none."""
    found = _NUMBERS.search(text)
    return tuple(int(number or 0) for number in found.groups()) if found else ()


def refusal(title: str, version: str, windows: Windows) -> str | None:
    """Why this version is not driven; None: it is, or nothing is known against it."""
    found = numbers(version)
    if not found or not windows or any(_has(window, found) for window in windows):
        return None
    known = " and ".join(oldest if oldest == newest else f"{oldest} to {newest}" for oldest, newest in windows)
    return f"{title} {version} is not supported: supported are {known}, and later ones with the same first number"


def _has(window: Sequence[str], found: tuple[int, ...]) -> bool:
    oldest, newest = window
    return numbers(oldest) <= found and found[0] <= numbers(newest)[0]
