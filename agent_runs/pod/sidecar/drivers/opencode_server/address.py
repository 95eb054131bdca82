"""Where OpenCode's server listens."""

from __future__ import annotations

import re
import time
from typing import NamedTuple

from agent_runs.pod.sidecar import shared
from agent_runs.pod.sidecar.drivers.versions import VERSION_UNSUPPORTED, Windows, numbers, refusal
from agent_runs.pod.sidecar.drivers.waiting import Waiter

MAX_OUTPUT = 64 * 1024
"""Bytes of the server's stdout that are read: its address is in one of the first lines."""
LOOK_SECONDS = 0.05
_LISTENING = re.compile(rb"^(opencode )?server listening on http://127\.0\.0\.1:(\d{1,5})\r?$", re.MULTILINE)
_ENDED = re.compile(rb"^ended$", re.MULTILINE)
"""What `serve.sh` writes when there is no server any more."""


class Address(NamedTuple):
    """`is_opencode_1`: by the words in which it is written."""

    port: int
    is_opencode_1: bool


class Unusable(Exception):
    """The server cannot be used; no prompt was sent. `reason` is its name."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def await_address(path: str, seconds: float, waiter: Waiter) -> Address:
    """Return the address as soon as the server has written it.

    Raises:
        Unusable: it did not within that time, or has ended.
        Aborted: SIGTERM came.
    """
    end, (folder, _, name) = time.monotonic() + seconds, path.rpartition("/")
    while True:
        output = shared.read(folder, name, MAX_OUTPUT)
        found = _LISTENING.search(output)
        if found is None and _ENDED.search(output):
            raise Unusable("server_not_started", "the server ended before it wrote its address")
        if found is not None and 0 < int(found[2]) < 2**16:
            return Address(int(found[2]), is_opencode_1=found[1] is not None)
        if time.monotonic() >= end:
            raise Unusable("server_not_started", f"the server did not write its address within {seconds:g} s")
        waiter.ready(None, 0, LOOK_SECONDS)


def check_version(status: int, version: str, windows: Windows) -> str:
    """Return the version that a server has answered.

    Raises:
        Unusable: it refuses the password, or has another version.
    """
    if status in (401, 403):
        raise Unusable("server_refused", f"the server refuses the password: status {status}")
    if status != 200 or not numbers(version):
        raise Unusable("server_unsupported", f"the server's health has the status {status}, version {version!r}")
    if refused := refusal("OpenCode", version, windows):
        raise Unusable(VERSION_UNSUPPORTED, refused)
    return version
