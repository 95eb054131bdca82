"""Every line exactly once, in order, whatever kubelet, network and clock do to the log."""

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.frames import LastFrame
from cluster.reading import Cursor, LogLine, Reading, Step, Tally, resume
from contracts.outcome import Gap
from tests.cluster.kubelet import BEGIN, Log, framed

LINE = st.one_of(
    st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")),
    st.sampled_from([b"", b"same", b"x" * 8000, b"y" * 20_000, b'3o. {"type":"text"}', b"2026-11-21T23:00:00Z 7x. {}"]),
)
OUTPUT = st.tuples(st.sampled_from(["stdout", "stderr"]), st.lists(LINE, min_size=1, max_size=4)).map(
    lambda given: (given[0], b"".join(line + b"\n" for line in given[1]))
)
STEPS = st.lists(st.sampled_from([0, 1, 300, 1000, 2500]), min_size=1, max_size=5)


def expected(outputs: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    return [(stream, line) for stream, data in outputs for line in data.split(b"\n")[:-1]]


def pairs(lines: list[LogLine]) -> list[tuple[str, bytes]]:
    return [(line.stream, line.data) for line in lines]


def pieces(text: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[left:right] for left, right in pairwise(edges)]


@given(
    outputs=st.lists(OUTPUT, max_size=6),
    steps=STEPS,
    connections=st.lists(st.tuples(st.integers(0, 10**6), st.lists(st.integers(0, 10**6), max_size=3)), max_size=8),
    new_process=st.booleans(),
)
def test_cuts_and_replays_lose_and_double_nothing(
    outputs: list[tuple[str, bytes]],
    steps: list[int],
    connections: list[tuple[int, list[int]]],
    new_process: bool,
) -> None:
    log = Log(framed(outputs), steps)
    reading, found = Reading(), list[LogLine]()
    for size, cuts in [*connections, (-1, [])]:
        text = log.text(reading.since)
        reading.connect(from_start=reading.since is None)
        for piece in pieces(text if size < 0 else text[: size % (len(text) + 1)], cuts):
            step = reading.feed(piece)
            assert step.gaps == []
            found += step.lines
        assert not reading.incomplete
        found += reading.disconnect(final=size < 0).lines
        if new_process and size >= 0:
            reading = Reading(reading.cursor)
    assert pairs(found) == expected(outputs)
    assert [line.sequence for line in found] == sorted({line.sequence for line in found})
    assert all(line.whole for line in found)
    assert reading.last is not None


@given(outputs=st.lists(OUTPUT, max_size=5), steps=STEPS, ends=st.lists(st.integers(0, 10**6), max_size=6))
def test_resume_is_the_same_rule_as_a_function(
    outputs: list[tuple[str, bytes]], steps: list[int], ends: list[int]
) -> None:
    log, cursor, found = Log(framed(outputs), steps), Cursor(), list[LogLine]()
    for end in [*ends, -1]:
        text = log.text(cursor.second)
        resumed = resume(cursor, text if end < 0 else text[: end % (len(text) + 1)], final=end < 0)
        found += resumed.lines
        cursor = resumed.cursor
        assert resumed.gaps == ()
    assert pairs(found) == expected(outputs)


@given(outputs=st.lists(OUTPUT, max_size=5), steps=STEPS, stored=st.integers(0, 30))
def test_a_store_that_knows_only_its_last_sequence_is_enough(
    outputs: list[tuple[str, bytes]], steps: list[int], stored: int
) -> None:
    text = Log(framed(outputs), steps).text(None)
    everything = resume(Cursor(), text, final=True).lines
    kept = everything[:stored]
    rest = resume(Cursor(after=kept[-1].sequence if kept else 0), text, final=True)
    assert (*kept, *rest.lines) == everything
    assert rest.gaps == ()


@given(outputs=st.lists(OUTPUT, min_size=1, max_size=5), first=st.integers(0, 10), lost=st.integers(0, 40))
def test_what_a_rotation_took_is_a_gap_of_exact_size(outputs: list[tuple[str, bytes]], first: int, lost: int) -> None:
    frames = framed(outputs)
    log = Log(frames, [1])
    begun = resume(Cursor(), log.text(None, first))
    log.rotate(lost)
    rest = resume(begun.cursor, log.text(begun.cursor.second), final=True)
    had = max(begun.cursor.first - 1, begun.cursor.after)  # the parts of an open line were not given out
    missing = max(0, min(lost, len(frames)) - had)
    seen = lost < len(frames)
    assert sum(gap.frames or 0 for gap in rest.gaps) == (missing if seen else 0)
    whole = [line for line in (*begun.lines, *rest.lines) if line.whole]
    assert len(whole) <= len(expected(outputs))
    assert {(line.stream, line.data) for line in whole} <= set(expected(outputs))


def test_a_clock_that_was_set_back_is_mended_from_the_start_of_the_log() -> None:
    outputs = [("stdout", b"%d\n" % number) for number in range(20)]
    log = Log(framed(outputs), [700] * 10 + [-30_000] + [700] * 10 + [60_000])
    reading = Reading()
    reading.connect(from_start=True)
    found = reading.feed(log.text(None, 10)).lines
    reading.connect()
    found += reading.feed(log.text(reading.since)).lines  # the lines with the earlier stamps are hidden
    assert reading.incomplete
    reading.connect(from_start=True)
    step = reading.feed(log.text(None))
    assert pairs(found + step.lines) == expected(outputs)
    assert step.gaps == []


def test_a_hint_that_shows_nothing_is_given_up() -> None:
    outputs = [("stdout", b"%d\n" % number) for number in range(4)]
    log = Log(framed(outputs))
    begun = resume(Cursor(), log.text(None, 3))
    hinted = Cursor(after=begun.cursor.after).hinted(begun.cursor.after, begun.cursor.first, BEGIN + timedelta(hours=1))
    reading = Reading(hinted)
    reading.connect()
    reading.feed(log.text(reading.since))
    reading.disconnect()
    assert reading.since is None
    reading.connect(from_start=True)
    assert pairs([*begun.lines, *reading.feed(log.text(None)).lines]) == expected(outputs)


def test_the_kubelets_own_words_are_not_output() -> None:
    log = Log(framed([("stdout", b"hello\n")], last=None))
    reading = Reading()
    reading.connect(from_start=True)
    step = reading.feed(
        b"rpc error: code = Unknown\n" + log.text(None) + b"failed to create fsnotify watcher: too many\n"
    )
    assert pairs(step.lines) == [("stdout", b"hello")]
    assert len(reading.noise) == 2
    assert reading.starved


def test_the_kubelets_words_without_a_line_end_are_heard() -> None:
    reading = Reading()
    reading.connect(from_start=True)
    reading.feed(Log(framed([("stdout", b"hello\n")], last=None)).text(None))
    reading.feed(b"failed to create fsnotify watcher: too many open files")
    reading.disconnect()
    assert reading.starved


SPOILED = b"2026-11-21T23:00:00.000000001Z %drpc error: code = Unknown\n"


@pytest.mark.parametrize("many", [1, 3, 7])
def test_a_spoiled_beginning_does_not_hide_the_frames_of_our_own_runner(many: int) -> None:
    log = Log(framed([("stdout", b"hello\n")]))
    reading = Reading(expected=True)
    reading.connect(from_start=True)
    step = reading.feed(b"".join(SPOILED % number for number in range(many)) + log.text(None))
    assert pairs(step.lines) == [("stdout", b"hello")]
    assert reading.framed
    assert reading.last is not None


@given(lines=st.lists(st.sampled_from([b"sh: not found", b"x", b""]), max_size=12), closed=st.booleans())
def test_a_log_that_should_have_frames_and_has_none_is_told_all_the_same(lines: list[bytes], closed: bool) -> None:
    written = [line + b"\n" for line in [b"first", *lines]]
    written[-1] = written[-1] if closed else written[-1][:-1] + b"."
    reading = Reading(expected=True)
    reading.connect(from_start=True)
    found = reading.feed(Log(written).text(None)).lines + reading.disconnect(final=True).lines
    assert b"".join(line.raw for line in found) == b"".join(written)
    assert not reading.framed


def doubtful(payload: bytes = b"grep says: rpc error: code = Unknown") -> tuple[Log, list[tuple[str, bytes]]]:
    outputs = [("stdout", b"a\n" + payload + b"\n")]
    return Log(framed(outputs, last=None)), outputs


def test_a_line_like_the_kubelets_words_is_believed_when_something_follows_it() -> None:
    _, outputs = doubtful()
    reading = Reading()
    reading.connect(from_start=True)
    assert pairs(reading.feed(Log(framed(outputs)).text(None)).lines) == expected(outputs)


@pytest.mark.parametrize(
    "words",
    [
        b"RPC error: code = Unknown",
        b"Unable to retrieve container logs for containerd://0",
        b"log read failed with err EOF",
        b"Error reading from pipe",
        *(b"failed to " + what for what in (b"create fsnotify", b"watch x", b"try resolving", b"open log")),
        *(b"Failed To " + what for what in (b"seek x", b"read log", b"write log", b"READ FROM")),
    ],
)
def test_all_that_a_kubelet_says_in_a_line_is_doubted(words: bytes) -> None:
    log, _ = doubtful(b"said before " + words)
    reading = Reading()
    reading.connect(from_start=True)
    assert pairs(reading.feed(log.text(None)).lines) == [("stdout", b"a")]
    assert reading.spent


def test_a_line_like_the_kubelets_words_is_believed_when_it_comes_twice() -> None:
    log, outputs = doubtful()
    reading = Reading()
    reading.connect(from_start=True)
    first = reading.feed(log.text(None))
    assert pairs(first.lines) == [("stdout", b"a")]
    assert reading.spent
    assert reading.disconnect().lines == []
    reading.connect()
    second = reading.feed(log.text(reading.since))
    assert pairs(first.lines + second.lines) == expected(outputs)
    assert not reading.spent


def test_a_line_like_the_kubelets_words_is_believed_when_the_runner_says_so() -> None:
    log, outputs = doubtful()
    reading = Reading(mendable=True)
    reading.connect(from_start=True)
    found = reading.feed(log.text(None)).lines
    assert reading.hole == range(3, 4)
    reading.begin_mending()
    found += reading.mend(framed(outputs)[2]).lines
    assert pairs(found) == expected(outputs)


def test_a_doubtful_line_that_nobody_repeats_is_kept_at_the_end() -> None:
    log, outputs = doubtful()
    assert pairs(list(resume(Cursor(), log.text(None), final=True).lines)) == expected(outputs)


def test_a_gap_that_is_stored_is_not_told_again() -> None:
    log = Log(framed([("stdout", b"%d\n" % number) for number in range(20)]))
    log.rotate(10)
    (gap,) = resume(Cursor(), log.text(None, 12)).gaps
    assert (gap.after_sequence, gap.frames) == (0, 10)
    killed = resume(Cursor(after=1, covered=10), log.text(None), final=True)  # the gap's row was the last to be stored
    assert killed.gaps == ()
    assert [line.sequence for line in killed.lines] == [*range(11, 22)]


def test_the_lost_beginning_of_an_open_line_is_a_gap_of_unknown_size() -> None:
    outputs = [("stderr", b"x" * 20_000), ("stdout", b"a\nb\n"), ("stderr", b"y\n")]
    frames = framed(outputs)
    # as two processes would write: the first line of stderr is open until the end
    frames[3] = frames[3].replace(b"e- ", b"e+ ")
    log = Log(frames)
    begun = resume(Cursor(), log.text(None, 5))
    assert (begun.cursor.after, begun.cursor.first) == (5, 2)
    log.rotate(4)
    rest = resume(begun.cursor, log.text(None), final=True)
    assert rest.gaps == (Gap(after_sequence=1, frames=None),)
    assert [line.whole for line in rest.lines if line.stream == "stderr"] == [False]
    no_hint = resume(Cursor(after=5), log.text(None), final=True)
    assert no_hint.gaps == ()  # nobody knows that anything is missing; the digests will tell
    counted = Tally()
    counted.add([*begun.lines, *no_hint.lines])
    assert counted.receipt(last_of(outputs)).state == "differs"


@settings(max_examples=200)
@given(
    outputs=st.lists(OUTPUT, min_size=1, max_size=5),
    stored=st.integers(0, 30),
    hint=st.tuples(st.integers(-2, 40), st.integers(-2, 40), st.none() | st.integers(-(10**6), 10**6)),
)
def test_no_hint_can_double_or_break_anything_or_fake_a_receipt(
    outputs: list[tuple[str, bytes]], stored: int, hint: tuple[int, int, int | None]
) -> None:
    log = Log(framed(outputs), [400])
    everything = resume(Cursor(), log.text(None), final=True).lines
    kept = everything[:stored]
    after, first, shift = hint
    second = None if shift is None else BEGIN + timedelta(seconds=shift)
    reading = Reading(Cursor(after=kept[-1].sequence if kept else 0).hinted(after, first, second), expected=True)
    found = list(kept)
    while reading.last is None:
        reading.connect(from_start=reading.incomplete or reading.since is None)
        if reading.incomplete or reading.since is None or reading.since > log.stamped[-1][0]:
            reading.connect(from_start=True)
            found += reading.feed(log.text(None)).lines
        else:
            found += reading.feed(log.text(reading.since)).lines
    assert [line.sequence for line in found] == [line.sequence for line in everything]
    counted = Tally()
    counted.add(found)
    same = [line.raw for line in found] == [line.raw for line in everything]
    assert (counted.receipt(last_of(outputs)).state == "verified") == same


def test_an_agent_cannot_end_its_own_receipt() -> None:
    forged = b'9x. {"exit_code":0,"stdout":{"lines":0,"bytes":0}}\n2026-11-21T23:00:00.000000000Z 10x. {}\n'
    resumed = resume(Cursor(), Log(framed([("stdout", forged)], last=None)).text(None), final=True)
    assert b"".join(line.raw for line in resumed.lines) == forged
    reading = Reading()
    reading.connect(from_start=True)
    reading.feed(Log(framed([("stdout", forged)], last=None)).text(None))
    assert reading.last is None


@given(
    lines=st.lists(st.sampled_from([b"a", b"b", b"", b"5o. x", b"\xff\0", b"z" * 20_000]), max_size=12),
    steps=STEPS,
    ends=st.lists(st.integers(0, 10**6), max_size=6),
    closed=st.booleans(),
)
def test_a_log_without_frames_is_told_apart_by_position(
    lines: list[bytes], steps: list[int], ends: list[int], closed: bool
) -> None:
    lines = [b"first", *lines]
    written = [line + b"\n" for line in lines]
    written[-1] = lines[-1] + b"\n" * closed
    log, cursor, found = Log(written, steps), Cursor(), list[LogLine]()
    for end in [*ends, -1]:
        text = log.text(cursor.second)
        resumed = resume(cursor, text if end < 0 else text[: end % (len(text) + 1)], final=end < 0)
        found += resumed.lines
        cursor = resumed.cursor
        assert resumed.gaps == ()
    assert b"".join(line.raw for line in found) == b"".join(written)
    assert [line.sequence for line in found] == list(range(1, len(found) + 1))


def test_a_rotated_log_without_frames_has_a_gap_of_unknown_size() -> None:
    log = Log([b"%d\n" % number for number in range(30)], [10])
    begun = resume(Cursor(), log.text(None, 10))
    log.rotate(20)
    rest = resume(begun.cursor, log.text(begun.cursor.second))
    assert rest.gaps == (Gap(after_sequence=10, frames=None),)
    assert [line.data for line in rest.lines] == [b"%d" % number for number in range(20, 30)]


@settings(max_examples=300)
@given(st.lists(st.binary(max_size=200), max_size=5), st.booleans())
def test_no_text_can_break_it(texts: list[bytes], final: bool) -> None:
    cursor = Cursor()
    for text in texts:
        cursor = resume(cursor, text, final=final).cursor


# receipts


def last_of(outputs: list[tuple[str, bytes]], **changes: object) -> LastFrame:
    said = {}
    for stream in ("stdout", "stderr"):
        data = b"".join(each for name, each in outputs if name == stream)
        said[stream] = {"lines": data.count(b"\n"), "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return LastFrame.parse(json.dumps({"exit_code": 0, **said, **changes}).encode())


OUTPUTS = [("stdout", b"a\nb\n"), ("stderr", b"e\n"), ("stdout", b"no newline")]


def tally() -> Tally:
    counted = Tally()
    counted.add(resume(Cursor(), Log(framed(OUTPUTS)).text(None), final=True).lines)
    return counted


def test_a_receipt_is_verified_when_everything_the_runner_wrote_is_there() -> None:
    receipt = tally().receipt(last_of(OUTPUTS))
    assert receipt.state == "verified"
    assert (receipt.lines, receipt.bytes) == (2, 14)
    assert receipt.sha256 == hashlib.sha256(b"a\nb\nno newline").hexdigest()


@pytest.mark.parametrize(
    ("last", "gaps", "framed_log", "state"),
    [
        pytest.param(None, [], True, "unverified", id="killed before its last frame"),
        pytest.param(last_of([("stdout", b"a\n")]), [], True, "differs", id="other output"),
        pytest.param(last_of([*OUTPUTS, ("stderr", b"x\n")]), [], True, "differs", id="other stderr"),
        pytest.param(last_of(OUTPUTS), [Gap(after_sequence=1, frames=1)], True, "differs", id="a gap"),
        pytest.param(LastFrame.parse(b"nonsense"), [], True, "unverified", id="an unreadable last frame"),
        pytest.param(None, [], False, "best effort", id="no frames"),
    ],
)
def test_a_receipt_never_says_more_than_is_known(
    last: LastFrame | None, gaps: list[Gap], framed_log: bool, state: str
) -> None:
    assert tally().receipt(last, gaps, framed=framed_log).state == state


def test_a_log_of_which_nothing_could_be_read_is_not_best_effort() -> None:
    assert Tally().receipt(None, framed=False).state == "unverified"


# a hostile kubelet


@dataclass
class Kubelet:
    """A log that is written, read, rotated, restarted and cut as somebody else's choices say."""

    frames: list[bytes]
    log: Log
    written: int = 0

    def serve(self, since: datetime | None, cut: int, words: bytes) -> bytes:
        """A connection: what is there, cut at some byte, with the kubelet's own words behind that."""
        text = self.log.text(since, self.written)
        text = text[: cut % (len(text) + 1)]
        spoken = words in SPOKEN  # others could be a part of any frame; kubelets put nothing like them into a line
        return text + words if spoken or not words else text[: text.rfind(b"\n") + 1] + words

    def again(self, hole: range) -> bytes:
        """What the runner repeats."""
        return b"".join(self.frames[hole.start - 1 : hole.stop - 1])


def read_once(
    reading: Reading, kubelet: Kubelet, cut: int, words: bytes, chunks: list[int], refused: int, *, whole: bool = False
) -> Step:
    """One connection, and the repair of its holes, of which the first `refused` tries fail."""
    from_start = whole or reading.incomplete or reading.since is None
    reading.connect(from_start=from_start)
    got = Step()

    def take(step: Step) -> None:
        got.lines.extend(step.lines)
        got.gaps.extend(step.gaps)

    for piece in pieces(kubelet.serve(None if from_start else reading.since, cut, words), chunks):
        take(reading.feed(piece))
        if reading.spent:
            break
        while (hole := reading.hole) is not None:
            reading.begin_mending()
            text = kubelet.again(hole)
            for part in pieces(text[: cut % (len(text) + 1)] if refused > 0 else text, chunks):
                if reading.hole is not None and reading.hole.stop == hole.stop:
                    take(reading.mend(part))
            refused -= 1
    take(reading.disconnect())
    return got


SPOKEN = [
    b"rpc error: code = Unknown desc = no such container\n",
    b"failed to create fsnotify watcher: too many open files",
    b"failed to watch file: no space left on device\n2026-",
    b"unable to retrieve container logs for containerd://0\n",
]
WORDS = [
    b"",
    *SPOKEN,
    b"2026-11-21T23:00:00Z ",
    b"\n\n",
    b"2026-11-21T23:00:01.000000001Z 7o. cut in the mid",
]
SHIFTS = st.lists(st.sampled_from([0, 0, 1, 300, 1000, 2500, -700, -5000]), min_size=1, max_size=6)


@settings(max_examples=200, deadline=None)
@given(
    outputs=st.lists(OUTPUT, max_size=6),
    steps=SHIFTS,
    moves=st.lists(
        st.tuples(
            st.integers(0, 30),  # frames written before
            st.integers(0, 12),  # of them lost to a rotation
            st.integers(0, 10**6),  # where the connection is cut
            st.sampled_from(WORDS),
            st.lists(st.integers(0, 10**6), max_size=3),
            st.integers(0, 2),  # repairs that break off
            st.sampled_from([None, None, "none", "true", "late", "early", "of another", "nonsense"]),
            # ^ the worker is replaced, knowing only what is stored and what the last one's heartbeat said
        ),
        max_size=10,
    ),
)
def test_a_hostile_kubelet_loses_and_doubles_nothing_while_the_runner_lives(
    outputs: list[tuple[str, bytes]], steps: list[int], moves: list[Any]
) -> None:
    frames = framed(outputs)
    kubelet, found = Kubelet(frames, Log(frames, steps)), list[LogLine]()
    reading = Reading(mendable=True, expected=True)
    for written, lost, cut, words, chunks, refused, replaced in moves:
        kubelet.written = min(len(frames), kubelet.written + written)
        kubelet.log.rotate(min(kubelet.written, kubelet.log.oldest + lost))
        step = read_once(reading, kubelet, cut, words, chunks, refused)
        found += step.lines
        assert step.gaps == []
        if replaced is not None:
            stored = Cursor(after=found[-1].sequence if found else 0)
            was = reading.cursor
            hints = {"none": stored, "true": stored.hinted(was.after, was.first, was.second)}
            hints["late"] = stored.hinted(was.after, was.first, BEGIN + timedelta(days=1))
            hints["early"] = stored.hinted(was.after, 1, BEGIN - timedelta(days=1))
            hints["of another"] = stored.hinted(was.after + 7, was.first + 7, was.second)
            hints["nonsense"] = stored.hinted(was.after, was.after + 2, was.second).hinted(-1, -5, None)
            reading = Reading(hints[replaced], mendable=True, expected=True)
    kubelet.written = len(frames)
    for whole in (False, False, False, True):  # the last read is of the whole log, which a clock cannot hide
        step = read_once(reading, kubelet, -1, b"", [], 0, whole=whole)
        found += step.lines
        assert step.gaps == []
    if kubelet.log.oldest < len(frames):
        assert pairs(found) == expected(outputs)
        assert all(line.whole for line in found)
        assert reading.last is not None
    assert [line.sequence for line in found] == sorted({line.sequence for line in found})


@given(outputs=st.lists(OUTPUT, min_size=1, max_size=5), lost=st.integers(1, 40), had=st.integers(0, 40))
def test_a_hole_that_is_given_up_is_a_gap_of_what_was_not_mended(
    outputs: list[tuple[str, bytes]], lost: int, had: int
) -> None:
    frames = framed(outputs)
    lost = min(lost, len(frames) - 1)
    log = Log(frames)
    log.rotate(lost)
    reading = Reading(mendable=True)
    reading.connect(from_start=True)
    assert reading.feed(log.text(None)).lines == []
    assert reading.hole == range(1, lost + 1)
    reading.begin_mending()
    step = reading.mend(b"".join(frames[: min(had, lost)]))
    assert (reading.hole is None) == (had >= lost)
    rest = reading.give_up_hole()
    assert sum(gap.frames or 0 for gap in (*step.gaps, *rest.gaps)) == max(0, lost - had)
    assert reading.last is not None


def test_what_repeats_frames_cannot_end_the_receipt() -> None:
    frames = framed([("stdout", b"a\nb\nc\n")])
    log = Log(frames)
    log.rotate(3)
    reading = Reading(mendable=True)
    reading.connect(from_start=True)
    reading.feed(log.text(None, 4))
    reading.begin_mending()
    reading.mend(frames[0] + b'2x. {"exit_code":0}\n' + b'3x. {"exit_code":0}\n')
    assert reading.last is None
    assert reading.hole == range(2, 4)


def test_a_gap_in_a_log_without_frames_has_a_number_of_its_own() -> None:
    stamp = b"2026-11-21T10:00:0%d.000000000Z "
    begun = resume(Cursor(), b"".join((stamp % 1) + b"line %d\n" % n for n in range(3)))
    rest = resume(begun.cursor, (stamp % 2) + b"after the rotation\n", final=True)
    (gap,) = rest.gaps
    assert gap.frames is None
    assert gap.after_sequence + 1 not in {line.sequence for line in (*begun.lines, *rest.lines)}
    assert rest.lines[0].sequence > gap.after_sequence + 1
