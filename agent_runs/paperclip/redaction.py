"""Redacts known secrets in an agent's output, and in texts about it.

Each value is searched for in all its spellings and replaced by a marker with its name. This protects against accidents
such as `env` in a shell; an agent that splits or disguises a secret is not stopped.

One search finds all of them (Aho-Corasick, see docs/adr/0015). It knows the beginning of each spelling; where one is
found, the text is compared with the rest. So its size depends on how many values there are, not on how long they are,
and a secret that is cut off is hidden, too.
"""

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Final, NamedTuple, Self

from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

from agent_runs.paperclip.secret_values import MIN_LENGTH
from agent_runs.paperclip.spellings import spellings

HEAD_LIMIT: Final = 64
"""Bytes of a spelling that the search knows."""
SEARCH_LIMIT: Final = 64 * 1024
"""Bytes of all beginnings in one search. Building it keeps Python's lock, some 15 ms for so many; a run of up to some
200 values has one search."""
CHUNK: Final = 64 * 1024
"""Bytes that are searched at a time: what is found in them is listed with Python's lock kept."""
LABEL_LIMIT: Final = 32
"""Characters of a name in a marker; fewer for a short value, because of `MAX_GROWTH`."""
MAX_GROWTH: Final = 4
"""A marker has at most so many times the bytes of the value that it replaces."""

_FRAME: Final = len("[[secret:.500]]")
"""Characters of a marker beside the name."""
_ELLIPSIS: Final = "\N{HORIZONTAL ELLIPSIS}".encode()
_NOT_IN_LABELS: Final = re.compile(r"[^A-Za-z0-9_.-]")
_FIRST_COMPARISON: Final = 256


class _Spelling(NamedTuple):
    """A spelling of one value, and what replaces it and parts of it."""

    text: bytes
    marker: bytes


@dataclass(frozen=True)
class _Search:
    """Finds the beginnings of spellings. `groups` has, for each beginning, the spellings with it in order."""

    automaton: BytesAhoCorasick
    groups: Sequence[Sequence[_Spelling]]

    @classmethod
    def of(cls, heads: Mapping[bytes, list[_Spelling]]) -> Self:
        automaton = BytesAhoCorasick(
            list(heads), matchkind=MatchKind.LeftmostLongest, implementation=Implementation.ContiguousNFA
        )
        return cls(automaton, [sorted(group) for group in heads.values()])


@dataclass(frozen=True)
class Redaction:
    _searches: Sequence[_Search] = field(default=(), repr=False)
    _sorted: Sequence[_Spelling] = field(default=(), repr=False)

    @classmethod
    def of(cls, values: Iterable[tuple[str, str]]) -> Self:
        """Redacts these values, each with its name. Long lists take some time, so not on an event loop."""
        known: dict[bytes, _Spelling] = {}
        for label, value in _labelled(values):
            for text in spellings(value):
                known.setdefault(text, _Spelling(text, f"[[secret:{label}]]".encode()))
        return cls(tuple(map(_Search.of, _parts(known.values()))), sorted(known.values()))

    def redact(self, data: bytes, *, is_cut: bool = False) -> bytes:
        """`data` with a marker for each secret; the same object when there is none in it.

        Args:
            is_cut: it may end inside a secret.
        """
        if not is_cut and len(data) <= CHUNK and not self._has_secret(data):
            return data
        result, rest = BytesIO(), 0
        for begin, end, marker in self._find(data, is_cut=is_cut):
            result.write(memoryview(data)[rest:begin])
            result.write(marker)
            rest = end
        result.write(memoryview(data)[rest:])
        return result.getvalue() if rest else data

    def hide(self, text: str) -> str:
        """A text about the run without its secrets.

        Such texts are shortened, so a secret may be cut off at the end: its beginning is hidden as well.
        """
        data = text.encode("utf-8", "surrogatepass")
        beginning = data.removesuffix(_ELLIPSIS)
        hidden = self.redact(beginning, is_cut=True)
        return text if hidden is beginning else (hidden + data[len(beginning) :]).decode("utf-8", "replace")

    def hide_in(self, text: str | None) -> str | None:
        return None if text is None else self.hide(text)

    def _has_secret(self, data: bytes) -> bool:
        for search in self._searches:  # noqa: SIM110 - `any` over a generator costs half as much as the search
            if search.automaton.find_matches_as_indexes(data):
                return True
        return False

    def _find(self, data: bytes, *, is_cut: bool = False) -> Iterator[tuple[int, int, bytes]]:
        """Begin and end of what is to be replaced, and the marker, in order.

        Where two secrets overlap it is the first one, and what the other has beyond it.
        """
        view, covered, begin = memoryview(data), 0, 0
        while begin < len(data):
            stop = begin + CHUNK
            for start, minus_end, number, index in self._heads(view, begin, stop):
                if -minus_end <= covered:
                    continue
                group = self._searches[number].groups[index]
                spelling, end = _longest(group, view, start, -minus_end)
                visible = max(start, covered)
                if visible > start and end - visible < MIN_LENGTH:
                    continue
                yield visible, end, spelling.marker
                covered = end
            begin = max(stop, covered)
        if is_cut and (last := self._cut_secret(data[covered:])) is not None:
            begin = covered + last[0]
            yield begin, len(data), last[1].marker

    def _heads(self, view: memoryview, begin: int, stop: int) -> list[tuple[int, int, int, int]]:
        """The beginnings that begin before `stop`: where, minus their end, number of the search and of the group."""
        window = view[begin : stop + HEAD_LIMIT - 1]
        heads = [
            (begin + start, -begin - end, number, index)
            for number, search in enumerate(self._searches)
            for index, start, end in search.automaton.find_matches_as_indexes(window)
            if begin + start < stop
        ]
        return sorted(heads) if len(self._searches) > 1 else heads

    def _cut_secret(self, data: bytes) -> tuple[int, _Spelling] | None:
        """Where the beginning of a secret begins that goes on until the end, and the secret."""
        for begin in range(max(len(data) - HEAD_LIMIT, 0), len(data) - MIN_LENGTH + 1):
            tail = data[begin:]
            at = bisect_left(self._sorted, tail, key=lambda each: each.text)
            if at < len(self._sorted) and self._sorted[at].text.startswith(tail):
                return begin, self._sorted[at]
        return None


def _labelled(values: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """The values with labels: their names, bounded, and numbered where several would be equal."""
    times: Counter[str] = Counter()
    taken: set[str] = set()
    for name, value in dict.fromkeys(values):
        label = _NOT_IN_LABELS.sub("_", name)[: min(LABEL_LIMIT, MAX_GROWTH * len(value) - _FRAME)] or "_"
        times[label] += 1
        which = label if times[label] == 1 else f"{label}.{times[label]}"
        while which in taken:
            times[label] += 1
            which = f"{label}.{times[label]}"
        taken.add(which)
        yield which, value


def _parts(known: Iterable[_Spelling]) -> Iterator[dict[bytes, list[_Spelling]]]:
    """The spellings by their beginnings, in parts of at most `SEARCH_LIMIT`."""
    heads: defaultdict[bytes, list[_Spelling]] = defaultdict(list)
    for spelling in known:
        heads[spelling.text[:HEAD_LIMIT]].append(spelling)
    part: dict[bytes, list[_Spelling]] = {}
    size = 0
    for head, group in heads.items():
        if part and size + len(head) > SEARCH_LIMIT:
            yield part
            part, size = {}, 0
        part[head] = group
        size += len(head)
    if part:
        yield part


def _longest(group: Sequence[_Spelling], view: memoryview, start: int, head_end: int) -> tuple[_Spelling, int]:
    """The spelling that agrees longest with the text at `start`, and where they differ."""
    if len(group) == 1 and len(group[0].text) == head_end - start:
        return group[0], head_end
    size = _FIRST_COMPARISON
    while True:
        window = bytes(view[start : start + size])
        at = bisect_left(group, window, key=lambda each: each.text)
        spelling = max(group[max(at - 1, 0) : at + 1], key=lambda each: _common(each.text, window))
        agreed = _common(spelling.text, window)
        if agreed < size:
            return spelling, start + agreed
        size *= 2


def _common(one: bytes, other: bytes) -> int:
    """How many bytes at their beginnings are equal."""
    if one.startswith(other) or other.startswith(one):
        return min(len(one), len(other))
    low, high = 0, min(len(one), len(other))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle)
    return low
