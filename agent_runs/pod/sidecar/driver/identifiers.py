"""Identifiers as OpenCode makes them: 12 hexadecimal digits of time, then 14 random letters and digits.

They sort by time, and OpenCode takes the greatest for the newest message: a prompt's must be greater than all before.
Source: OpenCode 1.18.33, read in its program and tried.
"""

from __future__ import annotations

import re
import secrets
import string

_LETTERS = string.digits + string.ascii_letters
_MESSAGE = re.compile(r"msg_([0-9a-f]{12})[0-9A-Za-z]{14}")
_BITS = 48


def identifier(prefix: str, milliseconds: int, after: str = "") -> str:
    """Return a new one that sorts behind `after`, a message's, even if the clock is late."""
    time = (milliseconds << 12) % (1 << _BITS)
    newest = _MESSAGE.fullmatch(after)
    if newest is not None:
        time = min(max(time, int(newest[1], 16) + 1), (1 << _BITS) - 1)
    return f"{prefix}_{time:012x}{''.join(secrets.choice(_LETTERS) for _ in range(14))}"
