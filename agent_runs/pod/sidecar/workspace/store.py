"""The client of the workspace service: its four requests."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

BATCH = 8 * 1024 * 1024
"""Bytes of the blocks in one request, or in one answer."""
BLOCKS_READ = 512
"""Blocks in one answer, at the most."""
DIGESTS = 50_000
"""Digests in one request."""
CONNECT_SECONDS, READ_SECONDS = 10.0, 60.0
FIRST_PAUSE, LAST_PAUSE = 0.1, 5.0
"""Seconds between the tries of a request."""
RETRY_SECONDS = 120.0
"""For which a request is tried where that is limited, if the configuration does not say so."""
MAX_ANSWER = 128 * 1024 * 1024
MAX_TEXT = 300
UNAVAILABLE, FENCED, MISSING, DAMAGED = "unavailable", "fenced", "missing", "damaged"
NOTHING_STORED = "no_workspace"


class Refused(Exception):
    """The service, or what is between, did not do it. Only `unavailable` may pass."""

    def __init__(self, code: str, message: str, blocks: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.code, self.message, self.blocks = code[:64], message[:MAX_TEXT], blocks


class Store:
    """The workspace of one run, by its token, over one connection that is kept.

    Args:
        wait: waits before a request is tried again, and returns False if it is not to be. It gets the seconds to wait
            and those since the request failed first.
    """

    def __init__(self, config: Mapping[str, Any], wait: Callable[[float, float], bool]) -> None:
        url = urlsplit(config["url"])
        self._prefix = url.path.rstrip("/")
        self._headers = {"Authorization": f"Bearer {config['token']}", "Content-Type": "application/octet-stream"}
        self._wait = wait
        self._connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=CONNECT_SECONDS)
        if url.scheme == "https":
            trust = ssl.create_default_context()
            if config.get("ca"):
                trust.load_verify_locations(config["ca"])
            self._connection = http.client.HTTPSConnection(
                url.hostname or "", url.port, timeout=CONNECT_SECONDS, context=trust
            )

    def close(self) -> None:
        self._connection.close()

    def missing(self, digests: Sequence[str]) -> list[str]:
        """Those of these blocks that have to be sent."""
        answers = [
            self._ask("missing", bytes.fromhex("".join(digests[at : at + DIGESTS])))[0]
            for at in range(0, len(digests), DIGESTS)
        ]
        lacks = b"".join(answers)
        return [lacks[at : at + 32].hex() for at in range(0, len(lacks), 32)]

    def send(self, blocks: Iterable[bytes]) -> int:
        """Store blocks, and return how many bytes they have."""
        pieces, size, sent = list[bytes](), 0, 0
        for block in blocks:
            if size + len(block) > BATCH:
                self._ask("blocks", b"".join(pieces))
                pieces, size = [], 0
            pieces += [len(block).to_bytes(4, "big"), block]
            size += len(block)
            sent += len(block)
        if pieces:
            self._ask("blocks", b"".join(pieces))
        return sent

    def add_tree(self, raw: bytes, kind: str, steps: int, session: str) -> int:
        """Add a tree to the ledger, and return its number."""
        about = {"Workspace-Kind": kind, "Workspace-Steps": str(steps), "Workspace-Session": quote(session)}
        answer, _ = self._ask("tree", zlib.compress(raw, 1), about)
        return int(json.loads(answer)["number"])

    def tree(self, number: int) -> bytes:
        """The tree with this number in the ledger; 0: the last one."""
        packed, _ = self._ask("read", number.to_bytes(8, "big"))
        return zlib.decompress(packed)

    def blocks(self, number: int, digests: Sequence[str]) -> list[bytes]:
        """Blocks of that tree."""
        answer, _ = self._ask("read", number.to_bytes(8, "big") + bytes.fromhex("".join(digests)))
        return list(_framed(answer))

    def _ask(self, path: str, body: bytes, headers: dict[str, str] | None = None) -> tuple[bytes, Any]:
        """The answer to a request, which is tried again while the service cannot be reached or fails.

        Raises:
            Refused: it was not done.
        """
        pause, failed_at = FIRST_PAUSE, None
        while True:
            try:
                return self._try(path, body, headers or {})
            except Refused as refused:
                if refused.code != UNAVAILABLE:
                    raise
                now = time.monotonic()
                failed_at = failed_at or now
                if not self._wait(pause, now - failed_at):
                    raise
                pause = min(2 * pause, LAST_PAUSE)

    def _try(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[bytes, Any]:
        try:
            if not self._connection.sock:
                self._connection.connect()
            self._connection.sock.settimeout(READ_SECONDS)
            self._connection.request("POST", f"{self._prefix}/workspace/{path}", body, {**self._headers, **headers})
            answer = self._connection.getresponse()
            content = answer.read(MAX_ANSWER)
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise Refused(UNAVAILABLE, f"{type(error).__name__}: {error}") from None
        if answer.status in (200, 204):
            return content, answer.headers
        if answer.status >= 500:
            self._connection.close()
            raise Refused(UNAVAILABLE, f"HTTP {answer.status}: {_message(content)}")
        raise _refused(answer.status, content)


def _message(content: bytes) -> str:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(content)["message"])
    return content[:MAX_TEXT].decode("utf-8", "replace")


def _refused(status: int, content: bytes) -> Refused:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        known = json.loads(content)
        return Refused(str(known["code"]), str(known["message"]), [str(each) for each in known.get("blocks", ())])
    return Refused(f"http_{status}", _message(content))


def _framed(content: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(content):
        size = int.from_bytes(content[at : at + 4], "big")
        yield content[at + 4 : at + 4 + size]
        at += 4 + size
