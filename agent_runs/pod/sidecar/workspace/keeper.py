"""The process that takes checkpoints: `python3 -I -S sidecar.pyz keep CONFIG`.

It reads lines from standard input: `step N SESSION` after a step of the agent, and `end N SESSION` once the agent has
ended. It takes a checkpoint at the first step and then at most one in `interval` seconds; at the end the last one. It
writes a line of JSON for each, and ends after the last.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import select
import time
from collections.abc import Iterator, Sequence
from typing import Any

from agent_runs.pod.sidecar.workspace.scan import EMPTY, TRIES, Scanner
from agent_runs.pod.sidecar.workspace.store import (
    FENCED,
    MISSING,
    NOTHING_STORED,
    RETRY_SECONDS,
    UNAVAILABLE,
    Refused,
    Store,
)

INTERVAL = 10.0
"""Seconds from one checkpoint to the next."""
NICE = 10
"""Its priority, which is below the agent's and the sidecar's."""
_COMMAND = re.compile(r"(step|end) ([0-9]{1,9}) (.*)")
MAX_LINE = 3500
"""Bytes of a line: it is written at once, and is in the last frame."""


class Keeper:
    """Takes checkpoints of the folders.

    Args:
        config: `url`, `token` and `roots`; optional are `ca`, `ignore`, `interval` and `retry_sec`.
        commands: the descriptor of what it reads.
    """

    def __init__(self, config: dict[str, Any], commands: int) -> None:
        self._store = Store(config, self._may_try_again)
        self._scanner = Scanner(config["roots"], config.get("ignore") or (), self._stored_tree)
        self._interval = float(config.get("interval", INTERVAL))
        self._retry_seconds = float(config.get("retry_sec", RETRY_SECONDS))
        self._commands = commands
        self._read = b""
        self._is_open = True
        self._wanted: tuple[int, str] | None = None  # steps and session of the next checkpoint
        self._ends = False
        self._last = {"number": 0, "steps": 0}
        self._stored = b""  # the digest of the last tree
        self._fenced: Refused | None = None

    def run(self) -> None:
        """Work until the last checkpoint is taken, or nobody wants one any more."""
        due = time.monotonic()
        while self._is_open:
            self._take(None if self._wanted is None else max(due - time.monotonic(), 0))
            if self._ends:
                break
            if self._wanted is not None and time.monotonic() >= due:
                due = time.monotonic() + self._interval
                (steps, session), self._wanted = self._wanted, None
                self._report("checkpoint", steps, session)
        if self._ends and self._wanted is not None:
            self._report("end", *self._wanted)

    def _take(self, seconds: float | None) -> None:
        """Take the commands that have come, or the first one that comes in this time."""
        while not self._ends and self._is_open and select.select([self._commands], [], [], seconds)[0]:
            seconds = 0
            piece = os.read(self._commands, 65536)
            self._is_open = bool(piece)
            *lines, self._read = (self._read + piece).split(b"\n")
            for line in lines:
                if found := _COMMAND.fullmatch(line.decode("utf-8", "replace")):  # a killed one may have taken a part
                    self._wanted, self._ends = (int(found[2]), found[3]), found[1] == "end"

    def _may_try_again(self, seconds: float, failed_for: float) -> bool:
        """A checkpoint is tried until the next one is wanted; the last one for a limited time."""
        if self._ends:
            time.sleep(seconds)
            return failed_for < self._retry_seconds
        self._take(seconds)
        return self._is_open and self._wanted is None

    def _report(self, kind: str, steps: int, session: str) -> None:
        sent, error = 0, None
        try:
            if self._fenced:
                raise self._fenced
            sent = self._keep(kind, steps, session)
        except Refused as refused:
            error = {"code": refused.code, "message": refused.message}
            self._fenced = refused if refused.code == FENCED else None
        except OSError as failed:
            error = {"code": "unreadable", "message": str(failed)}
        finally:
            self._store.close()
            self._scanner.close()
        os.write(1, _line({**self._last, "bytes": sent, "error": error}, self._scanner.warnings.texts()))

    def _keep(self, kind: str, steps: int, session: str) -> int:
        """Take a checkpoint; how many bytes were sent.

        Raises:
            Refused: it was not taken.
        """
        self._scanner.scan()
        for _ in range(TRIES):
            self._take(0)
            if self._wanted is None or self._ends:
                break
            # This step has ended meanwhile: the files have all of it, and the session does not.
            (steps, session), self._wanted = self._wanted, None
            self._scanner.scan()
        sent = 0
        for _ in range(TRIES):
            sent += self._send()
            raw = self._scanner.tree
            digest = hashlib.sha256(raw).digest()
            if kind == "checkpoint" and digest == self._stored:
                return sent
            try:
                number = self._store.add_tree(raw, kind, steps, session)
            except Refused as refused:
                if refused.code != MISSING:
                    raise
                self._scanner.is_lost()
                continue
            self._scanner.is_stored()
            self._stored, self._last = digest, {"number": number, "steps": steps}
            return sent
        raise Refused(UNAVAILABLE, "the store loses blocks as they are sent")

    def _stored_tree(self) -> bytes:
        """With which the pod began, or which an earlier keeper has stored."""
        try:
            return self._store.tree(0)
        except Refused as refused:
            if refused.code != NOTHING_STORED:
                raise
            return EMPTY

    def _send(self) -> int:
        """Send what the store lacks of the tree. A file that changes meanwhile is read again, a few times."""
        sent, tries = 0, 0
        while True:
            blocks, changed = self._scanner.blocks(), dict[str, None]()
            sent += self._store.send(self._contents(blocks, self._store.missing(list(blocks)), changed))
            if not changed:
                return sent
            tries += 1
            for path in changed:
                if tries > TRIES:
                    self._scanner.give_up(path)
                else:
                    now = self._scanner.read_again(path)
                    sent += self._store.send(self._contents(now, self._store.missing(list(now)), {}))

    def _contents(self, blocks: dict[str, Any], wanted: Sequence[str], changed: dict[str, None]) -> Iterator[bytes]:
        for block in wanted:
            content = self._scanner.content(block, blocks[block])
            if content is None:
                changed[blocks[block].path] = None
            else:
                yield content


def _line(about: dict[str, Any], warnings: list[str]) -> bytes:
    """A line with as many warnings as fit."""
    while True:
        line = json.dumps({**about, "warnings": warnings}).encode() + b"\n"
        if len(line) <= MAX_LINE or not warnings:
            return line
        warnings = warnings[:-1]


def main(config: str) -> None:
    """Be the keeper.

    Raises:
        OSError, ValueError, KeyError: the configuration cannot be used.
    """
    os.nice(NICE)
    with open(config) as file:
        known = json.load(file)
    Keeper(known, 0).run()
