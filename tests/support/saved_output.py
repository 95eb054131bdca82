"""Folds saved outputs, in any chunking: what a stream of whole lines must come to as well."""

from collections.abc import Iterable, Iterator
from itertools import chain

from agent_runs.transcript.fold import Fold
from agent_runs.transcript.lines import LINE_LIMIT, Line
from tests.support.lines import file_line


class LineSplitter:
    """Bytes of one stream in any chunking to lines. Keeps at most `limit` bytes of a line."""

    def __init__(self, stream: str = "stdout", limit: int = LINE_LIMIT) -> None:
        self._stream = stream
        self._limit = limit
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[Line]:
        """The lines that `chunk` completes."""
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            if self._size:
                self._keep(end)
                yield self._taken(terminated=True)
            else:
                yield file_line(end[: self._limit], self._stream)
        if rest:
            self._keep(rest)

    def finish(self) -> Iterator[Line]:
        """The unterminated last line, if there is one. The splitter is empty afterwards."""
        if self._size:
            yield self._taken(terminated=False)

    def _keep(self, piece: bytes) -> None:
        if self._size < self._limit:
            self._pieces.append(piece[: self._limit - self._size])
        self._size += len(piece)

    def _taken(self, *, terminated: bool) -> Line:
        line = file_line(b"".join(self._pieces), self._stream, terminated)
        self._pieces, self._size = [], 0
        return line


def fold_chunks(stdout: Iterable[bytes], stderr: Iterable[bytes] = (), resumed_session: str | None = None) -> Fold:
    """A fold over two saved outputs, each in chunks of any size."""
    fold = Fold(resumed_session)
    for line in chain(_split(stdout, "stdout"), _split(stderr, "stderr")):
        fold.add(line)
    return fold


def _split(chunks: Iterable[bytes], stream: str) -> Iterator[Line]:
    splitter = LineSplitter(stream)
    for chunk in chunks:
        yield from splitter.feed(chunk)
    yield from splitter.finish()
