"""Frames survive any chunking and any bytes; nothing that a container writes can break or deceive their reader."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runs.logs.frames import (
    JUNK_LIMIT,
    Frame,
    FrameReader,
    Junk,
    LastFrame,
    LineAssembler,
    Output,
    Totals,
    parse_frame,
)
from tests.logs.frame_encoding import PAYLOAD_LIMIT, encode_frame, split_frames
from tests.support.lines import log_line

STAMP = "2026-11-21T10:00:00.123456789Z"
nasty = st.lists(
    st.sampled_from([b"\n", b"\0", b"\xff", b"\\", b"\\0", b"\r", b"1o. ", b"x" * 5000, b" ", b"\x1b[0m"])
    | st.binary(max_size=30),
    max_size=30,
).map(b"".join)
outputs: st.SearchStrategy[Output] = st.sampled_from(["stdout", "stderr"])


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """`data` in chunks, cut at these places modulo its length."""
    ends = sorted({place % (len(data) + 1) for place in places})
    return [data[start:end] for start, end in zip([0, *ends], [*ends, len(data)], strict=True)]


def join(frames: list[Frame], stream: Output) -> bytes:
    return b"".join(
        line.data + (b"\n" if line.terminated else b"")
        for line in LineAssembler().feed(frames)
        if line.stream == stream
    )


@given(nasty, outputs)
def test_any_output_is_read_back_exactly(data: bytes, stream: Output) -> None:
    log = b"".join(map(encode_frame, split_frames(stream, data)))
    frames = FrameReader().feed(log)
    assert all(isinstance(frame, Frame) for frame in frames)
    assert join([frame for frame in frames if isinstance(frame, Frame)], stream) == data


@given(nasty, st.lists(st.integers(0, 10**6), max_size=20), st.booleans())
def test_any_chunking_gives_equal_items(log: bytes, places: list[int], timestamps: bool) -> None:
    whole, chunked = FrameReader(timestamps=timestamps), FrameReader(timestamps=timestamps)
    expected = [*whole.feed(log), *whole.close()]
    items = [item for chunk in cut(log, places) for item in chunked.feed(chunk)]
    assert [*items, *chunked.close()] == expected


@given(nasty, nasty, st.lists(st.integers(0, 10**6), max_size=20))
def test_any_chunking_of_frames_gives_equal_frames(out: bytes, err: bytes, places: list[int]) -> None:
    frames = list(split_frames("stdout", out))
    frames += split_frames("stderr", err, len(frames) + 1)
    log = b"".join(map(encode_frame, frames))
    reader = FrameReader()
    assert [item for chunk in cut(log, places) for item in reader.feed(chunk)] == frames
    assert reader.close() == []


@given(st.binary(max_size=200))
def test_hostile_logs_never_raise_and_lose_no_byte(log: bytes) -> None:
    reader = FrameReader()
    items = [*reader.feed(log), *reader.close()]
    assert all(isinstance(item, Junk) for item in items) or b" " in log
    if all(isinstance(item, Junk) for item in items):
        assert b"\n".join(item.data for item in items if isinstance(item, Junk)) == log.removesuffix(b"\n")


JUNK = [
    b"",
    b"1",
    b"1o",
    b"1o.",
    b"0o. zero",
    b"01o. leading zero",
    b"-1o. negative",
    b"1q. unknown stream",
    b"1o? unknown mark",
    b"1h+ the first frame never goes on",
    b"1x- nor does the last",
    b"1o.no blank",
    b" 1o. blank before",
    b"1O. bad \\x escape",
    b"1O. lonely \\",
    b"1" * 30 + b"o. too great a number",
    b"1o. " + b"x" * 8192,
    "1o. ".encode("utf-16"),
    b"failed to create fsnotify watcher: too many open files",
]


def test_what_is_no_frame_is_junk() -> None:
    assert [line for line in JUNK if FrameReader().feed(line + b"\n") != [Junk(line)]] == []


def test_timestamps_are_taken_off_and_kept() -> None:
    reader = FrameReader(timestamps=True)
    log = f"{STAMP} 1o. 2026-01-01T00:00:00Z mine\n{STAMP} no frame\n2o. unstamped\n".encode()
    assert reader.feed(log) == [
        Frame(1, "stdout", ".", b"2026-01-01T00:00:00Z mine", STAMP),
        Junk(b"no frame", timestamp=STAMP),
        Junk(b"2o. unstamped"),
    ]


def test_a_stamped_line_is_no_frame_to_a_reader_without_timestamps() -> None:
    line = f"{STAMP} 1o. x".encode()
    assert FrameReader().feed(line + b"\n") == [Junk(line)]


def test_an_overlong_line_is_cut_and_reading_continues() -> None:
    reader = FrameReader()
    for _ in range(100):
        assert reader.feed(b"1o. " + b"x" * JUNK_LIMIT) == []
    junk, frame = reader.feed(b"\n2o. next\n")
    assert junk == Junk((b"1o. " + b"x" * JUNK_LIMIT)[:JUNK_LIMIT])
    assert frame == Frame(2, "stdout", ".", b"next")
    assert FrameReader().feed(b"\n" + b"x" * (JUNK_LIMIT + 1) + b"\n")[1] == Junk(b"x" * JUNK_LIMIT)


def test_a_frame_that_the_end_of_the_log_cuts_is_no_frame() -> None:
    reader = FrameReader()
    assert reader.feed(b"1o. whole\n2o. cu") == [Frame(1, "stdout", ".", b"whole")]
    assert reader.close() == [Junk(b"2o. cu")]
    assert reader.close() == []


@pytest.mark.parametrize("payload", [b"new\nline", b"x" * 9000, b"\0" * 5000])
def test_a_payload_that_does_not_fit_is_refused(payload: bytes) -> None:
    with pytest.raises(ValueError, match="frame 7 of stdout"):
        encode_frame(Frame(7, "stdout", ".", payload))


def test_lines_carry_the_number_of_their_last_frame() -> None:
    frames = [
        Frame(2, "stdout", "+", b"a", "t2"),
        Frame(3, "stderr", ".", b"err", "t3"),
        Frame(4, "stdout", ".", b"b", "t4"),
        Frame(5, "stdout", "-", b"c", "t5"),
    ]
    lines = LineAssembler(first=2).feed(frames)
    assert lines == [
        log_line(3, "stderr", b"err", terminated=True),
        log_line(4, "stdout", b"ab", terminated=True),
        log_line(5, "stdout", b"c", terminated=False),
    ]


def test_a_line_over_the_limit_is_cut_and_marked() -> None:
    assembler = LineAssembler(limit=10)
    (line,) = assembler.feed([Frame(1, "stdout", "+", b"x" * 8), Frame(2, "stdout", ".", b"y" * 8)])
    assert (line.data, line.whole) == (b"x" * 8 + b"yy", False)
    (line,) = assembler.feed([Frame(3, "stdout", ".", b"z" * 10)])
    assert line.whole


def test_repeated_frames_are_dropped_and_a_gap_marks_what_it_may_have_hurt() -> None:
    frame = [Frame(n, "stdout", ".", b"%d" % n) for n in range(10)]
    assembler = LineAssembler()
    assert [line.sequence for line in assembler.feed([frame[1], frame[2], frame[1], frame[2], frame[3]])] == [1, 2, 3]
    hurt, healthy = assembler.feed([frame[6], frame[7]])
    assert (hurt.whole, healthy.whole) == (False, True)
    (err,) = assembler.feed([Frame(8, "stderr", ".", b"")])
    assert not err.whole


@given(nasty, nasty, st.data())
def test_an_assembler_that_takes_over_gets_the_rest_exactly(out: bytes, err: bytes, data: st.DataObject) -> None:
    """Two interleaved streams, the first reader dies anywhere, the next one starts at `needed_from`."""
    queues = {"o": list(split_frames("stdout", out)), "e": list(split_frames("stderr", err))}
    interleaving = data.draw(st.permutations([name for name, queue in queues.items() for _ in queue]))
    frames = [
        Frame(n, frame.stream, frame.mark, frame.payload)
        for n, name in enumerate(interleaving, 1)
        for frame in [queues[name].pop(0)]
    ]
    died = data.draw(st.integers(0, len(frames)))
    first = LineAssembler()
    kept = first.feed(frames[:died])
    second = LineAssembler(after=kept[-1].sequence if kept else 0, first=first.needed_from)
    assert kept + second.feed(frames[first.needed_from - 1 :]) == LineAssembler().feed(frames)


def test_the_last_frame_is_read() -> None:
    checksum = "0" * 16
    payload = (
        '{"exit_code":137,"signal":9,"stopped_by":"TERM","grace_exceeded":true,"error":"disk_full","new":[1],'
        f'"stdout":{{"lines":2,"bytes":18,"checksum":"{checksum}"}},"stderr":{{"lines":0,"bytes":3,"checksum":null}}}}'
    )
    assert LastFrame.parse(payload.encode()) == LastFrame(
        137, 9, "TERM", True, "disk_full", None, Totals(2, 18, checksum), Totals(0, 3, None)
    )


INVALID = [
    b"",
    b"null",
    b"[]",
    b"{",
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"exit_code":"0"}',
    b'{"exit_code":-1}',
    b'{"signal":9999}',
    b'{"error":{}}',
    b'{"stdout":{"bytes":-1}}',
    b'{"stdout":{"checksum":"short"}}',
    b'{"error":"\xff"}',
    b'{"workspace":{"number":-1,"steps":0}}',
    b'{"workspace":{"number":1,"steps":0,"warnings":["%b"]}}' % (b"x" * 401),
    b'{"workspace":{"number":1,"steps":0,"warnings":[%b"x"]}}' % (b'"x",' * 21),
]


def test_an_invalid_last_frame_is_an_error_and_never_a_success() -> None:
    unreadable = LastFrame(error="last_frame_unreadable")
    assert [payload for payload in INVALID if LastFrame.parse(payload) != unreadable] == []


@given(st.binary(max_size=100))
def test_the_last_frame_never_raises(payload: bytes) -> None:
    assert LastFrame.parse(payload).exit_code is None or payload.startswith((b"{", b" ", b"\t", b"\r", b"\n"))


def test_the_payload_limit_keeps_frames_under_8_kib() -> None:
    frame = Frame(10**17, "stdout", "+", b"x" * PAYLOAD_LIMIT)
    assert parse_frame(encode_frame(frame).rstrip(b"\n")) == frame
