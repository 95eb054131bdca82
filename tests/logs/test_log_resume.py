"""Every line exactly once, in order, whatever kubelet, network and clock do to the log."""

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_runs.contracts.outcome import Gap
from agent_runs.logs.frames import FRAME_LIMIT, Frame, Junk, LastFrame
from agent_runs.logs.log_resume import Cursor, LogReader, NewestFrame, ReadResult
from agent_runs.logs.stored_output import Tally
from agent_runs.transcript.lines import Line
from tests.logs.kubelet import BEGIN, Log, framed
from tests.logs.one_connection import fed, resume
from tests.support.lines import checksum_of, log_line

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


def pairs(lines: list[Line]) -> list[tuple[str, bytes]]:
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
    reader, delivered = LogReader(), list[Line]()
    for size, cuts in [*connections, (-1, [])]:
        text = log.text(reader.since)
        reader.connect(from_start=reader.since is None)
        for piece in pieces(text if size < 0 else text[: size % (len(text) + 1)], cuts):
            result = reader.feed(piece)
            assert result.gaps == []
            delivered += result.lines
        assert not reader.incomplete
        delivered += reader.disconnect(final=size < 0).lines
        if new_process and size >= 0:
            reader = LogReader(reader.cursor)
    assert pairs(delivered) == expected(outputs)
    assert [line.sequence for line in delivered] == sorted({line.sequence for line in delivered})
    assert all(line.whole for line in delivered)
    assert reader.last_frame is not None


@given(outputs=st.lists(OUTPUT, max_size=5), steps=STEPS, ends=st.lists(st.integers(0, 10**6), max_size=6))
def test_a_new_reader_for_each_connection_reads_the_same(
    outputs: list[tuple[str, bytes]], steps: list[int], ends: list[int]
) -> None:
    log, cursor, delivered = Log(framed(outputs), steps), Cursor(), list[Line]()
    for end in [*ends, -1]:
        text = log.text(cursor.second)
        resumed = resume(cursor, text if end < 0 else text[: end % (len(text) + 1)], final=end < 0)
        delivered += resumed.lines
        cursor = resumed.cursor
        assert resumed.gaps == ()
    assert pairs(delivered) == expected(outputs)


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
def test_what_a_rotation_removed_is_a_gap_of_exact_size(
    outputs: list[tuple[str, bytes]], first: int, lost: int
) -> None:
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


def test_lines_hidden_by_a_clock_that_was_set_back_are_read_from_the_start_of_the_log() -> None:
    outputs = [("stdout", b"%d\n" % number) for number in range(20)]
    log = Log(framed(outputs), [700] * 10 + [-30_000] + [700] * 10 + [60_000])
    reader = LogReader()
    reader.connect(from_start=True)
    delivered = reader.feed(log.text(None, 10)).lines
    reader.connect()
    delivered += reader.feed(log.text(reader.since)).lines  # the lines with the earlier stamps are hidden
    assert reader.incomplete
    reader.connect(from_start=True)
    result = reader.feed(log.text(None))
    assert pairs(delivered + result.lines) == expected(outputs)
    assert result.gaps == []


def test_a_hint_that_shows_nothing_is_dropped() -> None:
    outputs = [("stdout", b"%d\n" % number) for number in range(4)]
    log = Log(framed(outputs))
    begun = resume(Cursor(), log.text(None, 3))
    cursor = Cursor(after=begun.cursor.after).with_hint(
        begun.cursor.after, begun.cursor.first, BEGIN + timedelta(hours=1)
    )
    reader = LogReader(cursor)
    reader.connect()
    reader.feed(log.text(reader.since))
    reader.disconnect()
    assert reader.since is None
    reader.connect(from_start=True)
    assert pairs([*begun.lines, *reader.feed(log.text(None)).lines]) == expected(outputs)


@pytest.mark.parametrize("text", [b"", b"2026-11-21T23:00:00.000000001Z 9o. cut", b"2026-11-21T23:00:00Z Traceback\n"])
def test_a_hint_under_which_only_noise_came_is_dropped(text: bytes) -> None:
    reader = LogReader(Cursor(after=9).with_hint(9, 7, BEGIN))
    reader.connect()
    assert reader.feed(text).lines == []
    assert reader.disconnect().lines == []
    assert (reader.since, reader.cursor) == (None, Cursor(after=9, first=7, covered=9))


def test_no_hint_is_dropped_after_a_frame_was_read() -> None:
    log = Log(framed([("stdout", b"a\nb\n")]))
    reader = LogReader()
    for text in (log.text(None, 2), b""):
        reader.connect()
        reader.feed(text)
        reader.disconnect()
    assert reader.since == BEGIN


@pytest.mark.parametrize(
    ("after", "first", "belongs"),
    [
        pytest.param(1, 1, True, id="of the first line"),
        pytest.param(9, 10, True, id="with nothing open"),
        pytest.param(9, 3, True, id="with an open line"),
        pytest.param(0, 1, False, id="of a reader that had delivered nothing"),
        pytest.param(10, 3, False, id="of lines that are not stored"),
        pytest.param(9, 0, False, id="before the first frame"),
        pytest.param(5, 7, False, id="beyond its own lines"),
    ],
)
def test_a_hint_that_cannot_belong_to_a_cursor_changes_nothing(after: int, first: int, belongs: bool) -> None:
    cursor = Cursor(after=9)
    hinted = cursor.with_hint(after, first, BEGIN)
    assert hinted == (Cursor(after=9, first=first, second=BEGIN) if belongs else cursor)


def test_only_a_frame_can_be_the_newest_one_or_a_later_one() -> None:
    stamp, later = "2026-11-21T23:00:00.1Z", "2026-11-21T23:00:00.2Z"
    newest = NewestFrame(5, stamp)
    frames = [Frame(number, "stdout", ".", b"", stamp) for number in (4, 5, 6)]
    assert [newest.equals(frame) for frame in frames] == [False, True, False]
    assert [newest.precedes(frame) for frame in frames] == [False, False, True]
    junk = [Junk(b"", timestamp=at) for at in (None, stamp, later)]
    assert not any(newest.equals(line) or newest.precedes(line) for line in junk)


def test_messages_of_the_kubelet_are_not_output() -> None:
    log = Log(framed([("stdout", b"hello\n")], last=None))
    reader = LogReader()
    reader.connect(from_start=True)
    result = reader.feed(
        b"rpc error: code = Unknown\n" + log.text(None) + b"failed to create fsnotify watcher: too many\n"
    )
    assert pairs(result.lines) == [("stdout", b"hello")]
    assert len(reader.noise) == 2
    assert reader.needs_polling


@pytest.mark.parametrize("written", [framed([("stdout", b"hello\n")], last=None), [b"hello\n"]])
def test_a_message_of_the_kubelet_without_a_line_end_is_recognised(written: list[bytes]) -> None:
    reader = LogReader()
    reader.connect(from_start=True)
    reader.feed(Log(written).text(None))
    reader.feed(b"failed to create fsnotify watcher: too many open files")
    reader.disconnect()
    assert reader.needs_polling


BROKEN_LINE = b"2026-11-21T23:00:00.000000001Z %drpc error: code = Unknown\n"


@pytest.mark.parametrize("many", [1, 3, 7, 30])
def test_a_broken_beginning_does_not_hide_the_frames_of_our_runner(many: int) -> None:
    log = Log(framed([("stdout", b"hello\n")]))
    reader = LogReader()
    reader.connect(from_start=True)
    result = reader.feed(b"".join(BROKEN_LINE % number for number in range(many)) + log.text(None))
    assert pairs(result.lines) == [("stdout", b"hello")]
    assert reader.has_frames
    assert reader.last_frame is not None


@given(st.lists(st.sampled_from([b"sh: not delivered", b"x", b"", b"x" * 200_000, b"7q. x"]), max_size=30))
def test_a_log_without_any_frame_is_noise(lines: list[bytes]) -> None:
    reader = LogReader()
    reader.connect()
    result, rest = reader.feed(Log([line + b"\n" for line in lines]).text(None)), reader.disconnect(final=True)
    assert (result, rest) == (ReadResult(), ReadResult())
    assert (reader.has_frames, reader.newest, reader.spent, reader.missing_range) == (False, None, False, None)
    assert (reader.contiguous, reader.caught_up) == (True, True)


def suspect_log(payload: bytes = b"grep says: rpc error: code = Unknown") -> tuple[Log, list[tuple[str, bytes]]]:
    outputs = [("stdout", b"a\n" + payload + b"\n")]
    return Log(framed(outputs, last=None)), outputs


def test_a_line_like_a_kubelet_message_is_believed_when_something_follows_it() -> None:
    _, outputs = suspect_log()
    reader = LogReader()
    reader.connect(from_start=True)
    assert pairs(reader.feed(Log(framed(outputs)).text(None)).lines) == expected(outputs)


@pytest.mark.parametrize(
    "ending",
    [
        b"RPC error: code = Unknown",
        b"Unable to retrieve container logs for containerd://0",
        b"log read failed with err EOF",
        b"Error reading from pipe",
        *(b"failed to " + what for what in (b"create fsnotify", b"watch x", b"try resolving", b"open log")),
        *(b"Failed To " + what for what in (b"seek x", b"read log", b"write log", b"READ FROM")),
    ],
)
def test_every_kubelet_message_in_a_line_is_suspect(ending: bytes) -> None:
    log, _ = suspect_log(b"said before " + ending)
    reader = LogReader()
    reader.connect(from_start=True)
    assert pairs(fed(reader, log.text(None)).lines) == [("stdout", b"a")]
    assert reader.spent


def test_a_line_like_a_kubelet_message_is_believed_when_it_comes_twice() -> None:
    log, outputs = suspect_log()
    reader = LogReader()
    reader.connect(from_start=True)
    first = fed(reader, log.text(None))
    assert pairs(first.lines) == [("stdout", b"a")]
    assert reader.spent
    assert reader.disconnect().lines == []
    reader.connect()
    second = fed(reader, log.text(reader.since))
    assert pairs(first.lines + second.lines) == expected(outputs)
    assert not reader.spent


def test_nothing_after_an_unproven_line_is_taken_from_the_same_connection() -> None:
    log, outputs = suspect_log()
    reader = LogReader()
    reader.connect(from_start=True)
    delivered = fed(reader, log.text(None)).lines
    later = Log(framed([*outputs, ("stdout", b"b\n")], last=None))
    assert fed(reader, later.text(None)).lines == []
    reader.connect(from_start=True)
    delivered += fed(reader, later.text(None)).lines
    assert pairs(delivered) == [*expected(outputs), ("stdout", b"b")]


def test_a_line_like_a_kubelet_message_is_believed_when_the_runner_replays_it() -> None:
    log, outputs = suspect_log()
    reader = LogReader()
    reader.connect(from_start=True)
    delivered = reader.feed(log.text(None)).lines
    assert reader.missing_range == range(3, 4)
    reader.begin_backfill()
    delivered += reader.backfill(framed(outputs)[2]).lines
    assert pairs(delivered) == expected(outputs)


def test_a_gap_after_an_unproven_line_is_reported_as_any_other() -> None:
    log, _ = suspect_log()
    reader = LogReader()
    reader.connect(from_start=True)
    reader.feed(log.text(None))
    assert reader.give_up_missing_range().gaps == []
    assert reader.spent
    reader.connect(from_start=True)
    assert reader.feed(Log([b"7o. later\n"]).text(None)).lines == []
    result = reader.give_up_missing_range()
    assert result.gaps == [Gap(after_sequence=2, frames=4)]
    assert pairs(result.lines) == [("stdout", b"later")]


def test_a_suspect_line_that_is_not_repeated_is_kept_at_the_end() -> None:
    log, outputs = suspect_log()
    assert pairs(list(resume(Cursor(), log.text(None), final=True).lines)) == expected(outputs)


def test_a_stored_gap_is_not_reported_twice() -> None:
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
    assert no_hint.gaps == ()  # nobody knows that anything is missing; the checksums will tell
    counted = Tally()
    counted.add([*begun.lines, *no_hint.lines])
    assert counted.receipt(last_of(outputs)).state == "differs"


def test_the_loss_of_the_last_delivered_frame_may_be_a_part_of_a_line_that_is_still_open() -> None:
    frames = framed([("stderr", b"x" * 20_000), ("stdout", b"a\nb\n"), ("stderr", b"y\n")])
    frames[3] = frames[3].replace(b"e- ", b"e+ ")
    begun = resume(Cursor(), Log(frames).text(None, 5))
    assert (begun.cursor.after, begun.cursor.first) == (5, 2)
    rest = resume(begun.cursor, Log([*frames[:4], *frames[5:]]).text(None), final=True)
    assert rest.gaps == (Gap(after_sequence=1, frames=None),)


def test_a_reader_that_continues_behind_the_end_still_gets_the_last_frame() -> None:
    log = Log(framed([("stdout", b"a\nb\n")]))
    assert resume(Cursor(), log.text(None, 2)).cursor.first == 3
    behind = resume(Cursor(), log.text(None)).cursor
    reader = LogReader(behind)
    reader.connect()
    assert reader.feed(log.text(reader.since)).lines == []
    assert reader.last_frame is not None


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
    reader = LogReader(Cursor(after=kept[-1].sequence if kept else 0).with_hint(after, first, second))
    delivered = list(kept)
    while reader.last_frame is None:
        reader.connect(from_start=reader.incomplete or reader.since is None)
        if reader.incomplete or reader.since is None or reader.since > log.stamped[-1][0]:
            reader.connect(from_start=True)
            delivered += reader.feed(log.text(None)).lines
        else:
            delivered += reader.feed(log.text(reader.since)).lines
    assert [line.sequence for line in delivered] == [line.sequence for line in everything]
    counted = Tally()
    counted.add(delivered)
    same = [line.raw for line in delivered] == [line.raw for line in everything]
    assert (counted.receipt(last_of(outputs)).state == "verified") == same


def test_an_agent_cannot_forge_the_last_frame() -> None:
    forged = b'9x. {"exit_code":0,"stdout":{"lines":0,"bytes":0}}\n2026-11-21T23:00:00.000000000Z 10x. {}\n'
    resumed = resume(Cursor(), Log(framed([("stdout", forged)], last=None)).text(None), final=True)
    assert b"".join(line.raw for line in resumed.lines) == forged
    reader = LogReader()
    reader.connect(from_start=True)
    reader.feed(Log(framed([("stdout", forged)], last=None)).text(None))
    assert reader.last_frame is None


@settings(max_examples=300)
@given(st.lists(st.binary(max_size=200), max_size=5), st.booleans())
def test_no_text_breaks_the_reader(texts: list[bytes], final: bool) -> None:
    cursor = Cursor()
    for text in texts:
        cursor = resume(cursor, text, final=final).cursor


# receipts


def last_of(outputs: list[tuple[str, bytes]], **changes: object) -> LastFrame:
    totals = {}
    for stream in ("stdout", "stderr"):
        data = b"".join(each for name, each in outputs if name == stream)
        totals[stream] = {"lines": data.count(b"\n"), "bytes": len(data), "checksum": checksum_of(data)}
    return LastFrame.parse(json.dumps({"exit_code": 0, **totals, **changes}).encode())


OUTPUTS = [("stdout", b"a\nb\n"), ("stderr", b"e\n"), ("stdout", b"no newline")]


def tally() -> Tally:
    counted = Tally()
    counted.add(resume(Cursor(), Log(framed(OUTPUTS)).text(None), final=True).lines)
    return counted


def test_a_receipt_is_verified_when_everything_the_runner_wrote_is_there() -> None:
    receipt = tally().receipt(last_of(OUTPUTS))
    assert receipt.state == "verified"
    assert (receipt.lines, receipt.bytes) == (2, 14)
    assert receipt.checksum == checksum_of(b"a\nb\nno newline")


@pytest.mark.parametrize(
    ("last", "gaps", "state"),
    [
        pytest.param(None, [], "unverified", id="killed before its last frame"),
        pytest.param(last_of([("stdout", b"a\n")]), [], "differs", id="other output"),
        pytest.param(last_of([*OUTPUTS, ("stderr", b"x\n")]), [], "differs", id="other stderr"),
        pytest.param(last_of(OUTPUTS), [Gap(after_sequence=1, frames=1)], "differs", id="a gap"),
        pytest.param(LastFrame.parse(b"nonsense"), [], "unverified", id="an unreadable last frame"),
    ],
)
def test_a_receipt_never_claims_more_than_is_known(last: LastFrame | None, gaps: list[Gap], state: str) -> None:
    assert tally().receipt(last, gaps).state == state


WITHOUT_DIGESTS = {"stdout": {"lines": 2, "bytes": 14}, "stderr": {"lines": 1, "bytes": 2}}


@pytest.mark.parametrize(
    ("whole", "totals", "state"),
    [
        pytest.param(True, {}, "verified", id="equal checksums"),
        pytest.param(False, {}, "verified", id="equal checksums of a line that may be incomplete"),
        pytest.param(True, WITHOUT_DIGESTS, "unverified", id="only counts"),
        pytest.param(False, WITHOUT_DIGESTS, "differs", id="only counts of a line that may be incomplete"),
        pytest.param(True, WITHOUT_DIGESTS | {"stdout": {"lines": 3, "bytes": 14}}, "differs", id="another line"),
        pytest.param(True, WITHOUT_DIGESTS | {"stdout": {"lines": 2, "bytes": 13}}, "differs", id="another byte"),
    ],
)
def test_only_equal_checksums_verify_a_receipt(whole: bool, totals: dict[str, object], state: str) -> None:
    counted = tally()
    counted.whole = whole
    assert counted.receipt(last_of(OUTPUTS, **totals)).state == state


def test_one_line_that_may_be_incomplete_makes_all_of_an_output_so() -> None:
    for incomplete, state in ((None, "unverified"), (1, "differs"), (2, "differs"), (3, "differs")):
        counted = Tally()
        counted.add([log_line(number, "stdout", b"x", whole=number != incomplete) for number in (1, 2, 3)])
        assert counted.receipt(None).state == Tally.of(str(counted)).receipt(None).state == state


def test_a_log_of_which_nothing_could_be_read_is_unverified() -> None:
    assert Tally().receipt(None).state == "unverified"


# a hostile kubelet


@dataclass
class Kubelet:
    """A log that is written, read, rotated and cut at chosen places."""

    frames: list[bytes]
    log: Log
    written: int = 0

    def serve(self, since: datetime | None, cut: int, ending: bytes) -> bytes:
        """A connection: what is there, cut at some byte, followed by this ending."""
        text = self.log.text(since, self.written)
        text = text[: cut % (len(text) + 1)]
        # other endings could be a part of any frame, and kubelets write nothing like them into a line
        complete_message = ending in KUBELET_MESSAGES
        return text + ending if complete_message or not ending else text[: text.rfind(b"\n") + 1] + ending

    def replay(self, missing: range) -> bytes:
        """The frames that the runner repeats."""
        return b"".join(self.frames[missing.start - 1 : missing.stop - 1])


def read_once(
    reader: LogReader,
    kubelet: Kubelet,
    cut: int,
    ending: bytes,
    chunks: list[int],
    failing: int,
    *,
    whole: bool = False,
) -> ReadResult:
    """One connection, and the backfill of what is missing, of which the first `failing` requests are cut."""
    from_start = whole or reader.incomplete or reader.since is None
    reader.connect(from_start=from_start)
    got = ReadResult()

    def take(result: ReadResult) -> None:
        got.lines.extend(result.lines)
        got.gaps.extend(result.gaps)

    for piece in pieces(kubelet.serve(None if from_start else reader.since, cut, ending), chunks):
        take(reader.feed(piece))
        if reader.spent:
            break
        while (missing := reader.missing_range) is not None:
            reader.begin_backfill()
            text = kubelet.replay(missing)
            for part in pieces(text[: cut % (len(text) + 1)] if failing > 0 else text, chunks):
                if reader.missing_range is not None and reader.missing_range.stop == missing.stop:
                    take(reader.backfill(part))
            failing -= 1
    take(reader.disconnect())
    return got


KUBELET_MESSAGES = [
    b"rpc error: code = Unknown desc = no such container\n",
    b"failed to create fsnotify watcher: too many open files",
    b"failed to watch file: no space left on device\n2026-",
    b"unable to retrieve container logs for containerd://0\n",
]
ENDINGS = [
    b"",
    *KUBELET_MESSAGES,
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
            st.sampled_from(ENDINGS),
            st.lists(st.integers(0, 10**6), max_size=3),
            st.integers(0, 2),  # requests that are cut
            st.sampled_from([None, None, "none", "true", "late", "early", "of another", "nonsense"]),
            # ^ the worker is replaced and knows only what is stored and the last heartbeat
        ),
        max_size=10,
    ),
)
def test_a_hostile_kubelet_loses_and_doubles_nothing_while_the_runner_lives(
    outputs: list[tuple[str, bytes]], steps: list[int], moves: list[Any]
) -> None:
    frames = framed(outputs)
    kubelet, delivered = Kubelet(frames, Log(frames, steps)), list[Line]()
    reader = LogReader()
    for written, lost, cut, ending, chunks, failing, replaced in moves:
        kubelet.written = min(len(frames), kubelet.written + written)
        kubelet.log.rotate(min(kubelet.written, kubelet.log.oldest + lost))
        result = read_once(reader, kubelet, cut, ending, chunks, failing)
        delivered += result.lines
        assert result.gaps == []
        if replaced is not None:
            stored = Cursor(after=delivered[-1].sequence if delivered else 0)
            was = reader.cursor
            hints = {"none": stored, "true": stored.with_hint(was.after, was.first, was.second)}
            hints["late"] = stored.with_hint(was.after, was.first, BEGIN + timedelta(days=1))
            hints["early"] = stored.with_hint(was.after, 1, BEGIN - timedelta(days=1))
            hints["of another"] = stored.with_hint(was.after + 7, was.first + 7, was.second)
            hints["nonsense"] = stored.with_hint(was.after, was.after + 2, was.second).with_hint(-1, -5, None)
            reader = LogReader(hints[replaced])
    kubelet.written = len(frames)
    for whole in (False, False, False, True):  # the last read is of the whole log, which a clock cannot hide
        result = read_once(reader, kubelet, -1, b"", [], 0, whole=whole)
        delivered += result.lines
        assert result.gaps == []
    if kubelet.log.oldest < len(frames):
        assert pairs(delivered) == expected(outputs)
        assert all(line.whole for line in delivered)
        assert reader.last_frame is not None
    assert [line.sequence for line in delivered] == sorted({line.sequence for line in delivered})


@given(outputs=st.lists(OUTPUT, min_size=1, max_size=5), lost=st.integers(1, 40), had=st.integers(0, 40))
def test_what_is_not_backfilled_is_a_gap(outputs: list[tuple[str, bytes]], lost: int, had: int) -> None:
    frames = framed(outputs)
    lost = min(lost, len(frames) - 1)
    log = Log(frames)
    log.rotate(lost)
    reader = LogReader()
    reader.connect(from_start=True)
    assert reader.feed(log.text(None)).lines == []
    assert reader.missing_range == range(1, lost + 1)
    reader.begin_backfill()
    result = reader.backfill(b"".join(frames[: min(had, lost)]))
    assert (reader.missing_range is None) == (had >= lost)
    rest = reader.give_up_missing_range()
    assert sum(gap.frames or 0 for gap in (*result.gaps, *rest.gaps)) == max(0, lost - had)
    assert reader.last_frame is not None


def test_frames_beyond_the_last_known_one_are_requested_up_to_a_size_and_need_not_exist() -> None:
    frames = framed([("stdout", b"a\nb\n")])
    reader = LogReader()
    reader.connect(from_start=True)
    reader.feed(Log(frames).text(None, 2))
    assert reader.open_tail(5) == range(3, 8)
    assert pairs(reader.backfill(frames[2]).lines) == [("stdout", b"b")]
    assert reader.close_tail() == 4
    assert reader.missing_range is None
    reader.feed(Log(frames).text(None))
    assert reader.last_frame is not None
    assert reader.open_tail(5) is None


@pytest.mark.parametrize(("cursor", "number"), [(Cursor(), 1), (Cursor(after=2).with_hint(2, 3, BEGIN), 3)])
def test_frames_can_be_requested_before_the_log_has_shown_any(cursor: Cursor, number: int) -> None:
    frames = framed([("stdout", b"a\nb\n")], last=None)
    reader = LogReader(cursor)
    reader.connect()
    reader.disconnect()
    had_frames = reader.has_frames
    assert reader.open_tail(5) == range(number, number + 5)
    assert reader.close_tail() == number
    assert (reader.has_frames, reader.missing_range) == (had_frames, None)
    assert reader.open_tail(5) == range(number, number + 5)
    lines = reader.backfill(b"".join(frames[number - 1 :])).lines
    assert [line.sequence for line in lines] == [2, 3][-len(lines) :]
    assert (reader.close_tail(), reader.has_frames, reader.newest) == (4, True, None)
    reader.connect()
    assert reader.feed(Log(frames).text(None)).lines == []
    assert (reader.contiguous, reader.caught_up) == (True, True)


def test_frames_are_known_by_what_was_read_here_or_before() -> None:
    assert not LogReader().has_frames
    assert LogReader(Cursor(after=1)).has_frames
    assert LogReader(Cursor(covered=1)).has_frames
    log, reader = Log(framed([("stderr", b"a\n")])), LogReader()
    log.rotate(1)
    reader.connect()
    reader.feed(log.text(None, 2))
    assert (reader.missing_range, reader.has_frames, reader.has_stdout) == (range(1, 2), True, False)
    reader = LogReader()
    reader.open_tail(5)
    reader.backfill(framed([])[0])
    assert (reader.close_tail(), reader.has_frames) == (2, True)


def test_the_last_frame_may_come_from_the_sidecar_alone() -> None:
    frames = framed([("stdout", b"a\nb\n")])
    reader = LogReader()
    reader.connect(from_start=True)
    reader.feed(Log(frames).text(None, 2))
    reader.open_tail(100)
    assert pairs(reader.backfill(b"".join(frames[1:])).lines) == [("stdout", b"b")]
    assert reader.last_frame is not None
    assert reader.missing_range is None
    assert reader.close_tail() == 5


def test_an_unreadable_last_frame_is_requested_from_the_sidecar() -> None:
    frames = framed([("stdout", b"a\n")], b'{"exit_code":3}')
    reader = LogReader()
    reader.connect(from_start=True)
    reader.feed(Log([*frames[:2], b'3x. {"exit_code":rpc error: code = Unknown\n']).text(None))
    assert (reader.last_frame, reader.missing_range) == (None, range(3, 4))
    reader.begin_backfill()
    reader.backfill(frames[2])
    assert reader.last_frame is not None
    assert reader.last_frame.exit_code == 3


def test_no_replayed_frame_ends_the_log_before_frames_that_are_known() -> None:
    frames = framed([("stdout", b"a\nb\nc\n")])
    log = Log(frames)
    log.rotate(3)
    reader = LogReader()
    reader.connect(from_start=True)
    reader.feed(log.text(None, 4))
    reader.begin_backfill()
    reader.backfill(frames[0] + b'2x. {"exit_code":0}\n' + b'3x. {"exit_code":0}\n')
    assert reader.last_frame is None
    assert reader.missing_range == range(2, 4)


def test_another_reader_continues_in_the_second_of_the_oldest_frame_that_it_needs() -> None:
    long = b"x" * 2 * FRAME_LIMIT
    log = Log(framed([("stdout", b"one\n"), ("stderr", b"two\n"), ("stderr", long)], last=None), [1000])
    seconds = [moment for moment, _ in log.stamped]
    found = [resume(Cursor(), log.text(None, frames)).cursor for frames in range(1, 6)]
    assert [(cursor.first, cursor.second) for cursor in found] == [
        (2, seconds[0]),
        (3, seconds[1]),
        (4, seconds[2]),
        (4, seconds[3]),  # an open line begins there
        (4, seconds[3]),
    ]
