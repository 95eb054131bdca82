"""The sidecar's frames: exact for any bytes in any pieces, and the same when they are repeated."""

import ast
import io
import json
import os
import stat
import subprocess
import sys
import tempfile
import tracemalloc
import zipfile
from importlib.metadata import metadata
from pathlib import Path

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runs.logs.frames import FRAME_LIMIT, Frame, FrameReader, LineAssembler
from agent_runs.logs.frames import Output as Stream
from agent_runs.pod import sidecar
from agent_runs.pod.archive import sidecar_archive
from agent_runs.pod.sidecar.output import BLOCK, PARTIAL_SECONDS, Batches, Output
from agent_runs.pod.sidecar.output import Stream as SidecarStream
from agent_runs.pod.sidecar.shared import make_fifo
from agent_runs.pod.sidecar.watching import LONGEST_POLL, SHORTEST_POLL, Watch
from tests.support.lines import checksum_of

nasty = st.lists(
    st.sampled_from([b"\n", b"\0", b"\xff", b"\\", b"\r\n", b"\r", b"1o. ", b"x" * 3999, b"x" * 8000, b"\0" * 4001])
    | st.binary(max_size=30),
    max_size=20,
).map(b"".join)
NAMES: tuple[Stream, ...] = ("stdout", "stderr")


class Time:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def frames_of(log: bytes) -> list[Frame]:
    items = FrameReader().feed(log)
    frames = [item for item in items if isinstance(item, Frame)]
    assert frames == items
    return frames


@given(st.lists(st.tuples(st.sampled_from(NAMES), nasty, st.booleans(), st.booleans()), max_size=12), st.data())
def test_any_bytes_in_any_pieces_are_exact_and_repeated_exactly(
    pieces: list[tuple[Stream, bytes, bool, bool]], data: st.DataObject
) -> None:
    log, clock, written = bytearray(), Time(), dict.fromkeys(NAMES, b"")
    with tempfile.TemporaryDirectory() as folder:
        output = Output(folder, log.extend, clock)
        output.begin()
        for name, piece, forwarded, later in pieces:
            with (Path(folder) / name).open("ab") as file:
                file.write(piece)
            written[name] += piece
            while forwarded and output.forward():
                pass
            if later:
                clock.now += PARTIAL_SECONDS
        output.end(lambda: b"{}")
        totals = output.totals()
        first = data.draw(st.integers(1, output.number))
        last = data.draw(st.integers(first, output.number + 1))
        whole = b"".join(output.repeat(1, output.number))
        part = b"".join(output.repeat(first, last))
    frames = frames_of(bytes(log))
    assert [frame.seq for frame in frames] == list(range(1, len(frames) + 1))
    assert max(map(len, bytes(log).split(b"\n"))) < FRAME_LIMIT
    lines = LineAssembler().feed(frames)
    for name in NAMES:
        assert b"".join(line.raw for line in lines if line.stream == name) == written[name]
        assert (totals[name]["lines"], totals[name]["bytes"]) == (written[name].count(b"\n"), len(written[name]))
    assert whole == log
    assert frames_of(part) == frames[first - 1 : last]


def test_half_a_line_is_forwarded_when_its_rest_does_not_come(tmp_path: Path) -> None:
    log, clock = bytearray(), Time()
    output = Output(str(tmp_path), log.extend, clock)
    output.begin()
    (tmp_path / "stdout").write_bytes(b"...")
    assert not output.forward()
    waits = [output.due_in]
    clock.now = PARTIAL_SECONDS
    assert output.forward()
    waits.append(output.due_in)
    assert waits == [PARTIAL_SECONDS, None]
    assert frames_of(bytes(log))[-1].payload == b"..."


def test_what_is_known_of_frames_stays_small_however_many_there_are(tmp_path: Path) -> None:
    output = Output(str(tmp_path), lambda _: None)
    output.begin()
    with (tmp_path / "stdout").open("ab") as file:
        for _ in range(1000):
            file.write(b"line\n" * 10)
            file.flush()
            output.forward()
    assert output.number == 10_001
    assert sum(1 for _ in output.repeat(1, output.number)) == 2  # the first frame, and one batch of all others


def test_without_inotify_looks_get_rarer_until_something_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: object())  # a C library without inotify
    watch = Watch([])
    assert watch.timeout(grown=False) == SHORTEST_POLL
    assert [watch.timeout(grown=False) for _ in range(1000)][-1] == LONGEST_POLL
    assert (watch.timeout(grown=True), watch.timeout(grown=False)) == (0, SHORTEST_POLL)


def test_the_sidecar_is_written_for_python_3_9_the_standard_library_and_h11() -> None:
    folder = Path(sidecar.__file__).parent
    modules = {str(path.relative_to(folder)): path for path in folder.rglob("*.py")}
    foreign = [
        (name, each)
        for name, module in modules.items()
        for each in imported(ast.parse(module.read_text(), name, feature_version=(3, 9)))
        if each.partition(".")[0] not in sys.stdlib_module_names
        and not each.startswith("agent_runs.pod.sidecar")
        and each != "h11"
    ]
    assert foreign == []
    with zipfile.ZipFile(io.BytesIO(sidecar_archive())) as archive:
        assert {f"agent_runs/pod/sidecar/{name}" for name in modules} <= set(archive.namelist())


def imported(tree: ast.Module) -> set[str]:
    return {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }


def test_every_worker_makes_the_same_archive() -> None:
    code = "import hashlib; from agent_runs.pod.archive import sidecar_archive; "
    code += "print(hashlib.sha256(sidecar_archive()).hexdigest())"
    made = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(made) == 1  # else no run gets a pod that rests from before its worker's start


def test_the_archive_has_all_of_h11_for_python_3_9_and_stays_small() -> None:
    folder = Path(h11.__file__).parent
    modules = {path.name for path in folder.glob("*.py")}
    assert {"__init__.py", "_connection.py"} <= modules
    with zipfile.ZipFile(io.BytesIO(sidecar_archive())) as archive:
        names = [name for name in archive.namelist() if name.startswith("h11/") and name.endswith(".py")]
        assert archive.read("h11/LICENSE.txt").startswith(b"The MIT License")
        assert names == sorted(f"h11/{module}" for module in modules)
        for name in names:
            ast.parse(archive.read(name), feature_version=(3, 9))
    assert "Programming Language :: Python :: 3.9" in (metadata("h11").get_all("Classifier") or [])
    assert len(sidecar_archive()) < 520_000  # of the 1 MiB of a Secret


def test_what_a_program_writes_after_the_end_of_its_turn_is_in_no_figure_of_it(tmp_path: Path) -> None:
    frames: list[bytes] = []
    output = Output(str(tmp_path), frames.append)
    output.begin()
    (tmp_path / "stderr").write_bytes(b"one\n")

    def last() -> bytes:
        (tmp_path / "stderr").write_bytes(b"one\nwhat it says when it is ended\n")
        return json.dumps(output.totals()).encode()

    output.end(last)
    totals = json.loads(frames[-1].partition(b" ")[2])["stderr"]
    assert totals == {"lines": 1, "bytes": 4, "checksum": checksum_of(b"one\n")}


def test_what_a_program_writes_between_two_turns_is_in_no_figure_of_the_second(tmp_path: Path) -> None:
    frames: list[bytes] = []
    output = Output(str(tmp_path), frames.append)
    output.begin()
    output.end(lambda: b"{}")
    (tmp_path / "stderr").write_bytes(b"between\nand part")
    output.begin_turn(SidecarStream(str(tmp_path), b"o", "events"))
    output.end(lambda: json.dumps(output.totals()).encode())
    totals = json.loads(frames[-1].partition(b" ")[2])["stderr"]
    assert totals == {"lines": 0, "bytes": 0, "checksum": checksum_of(b"")}


def test_only_its_user_can_open_a_fifo_of_the_sidecar(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        make_fifo(str(tmp_path), "orders")
    finally:
        os.umask(umask)
    assert stat.filemode((tmp_path / "orders").stat().st_mode) == "prw-------"


def test_lines_without_text_need_little_memory_when_they_are_forwarded_and_repeated(tmp_path: Path) -> None:
    log = bytearray()
    output = Output(str(tmp_path), log.extend)
    output.begin()
    (tmp_path / "stdout").write_bytes(b"\n" * 400_000)
    tracemalloc.start()
    while output.forward():
        log.clear()
    repeated = sum(text.count(b"\n") for text in output.repeat(1, 400_001))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (output.number, repeated) == (400_001, 400_001)
    assert peak < 32 * 1024 * 1024


@pytest.mark.timeout(60)
def test_nothing_that_the_agent_puts_into_the_folder_holds_up_the_look_at_its_disk(tmp_path: Path) -> None:
    output = Output(str(tmp_path), bytearray().extend)
    os.mkfifo(tmp_path / "disk-probe")
    (tmp_path / "link").symlink_to(tmp_path / "link")
    (tmp_path / "stdout").unlink()
    os.mkfifo(tmp_path / "stdout")
    assert not output.disk_is_full
    assert output.disk_bytes is not None
    assert (tmp_path / "disk-probe").is_fifo()


def test_what_a_driver_writes_takes_the_place_of_standard_output(tmp_path: Path) -> None:
    log = bytearray()
    output = Output(str(tmp_path), log.extend, driven=SidecarStream(str(tmp_path), b"o", "events"))
    output.begin()
    for name in ("stdout", "stderr", "events"):
        (tmp_path / name).write_bytes(name.encode() + b"\n")
    while output.forward():
        pass
    lines = LineAssembler().feed(frames_of(bytes(log)))
    assert {(line.stream, line.data) for line in lines} == {("stdout", b"events"), ("stderr", b"stderr")}


def test_only_a_file_that_is_emptied_makes_an_output_truncated(tmp_path: Path) -> None:
    output = Output(str(tmp_path), lambda _: None)
    output.begin()
    found = [output.truncated]
    for content in (b"", b"one\n", b"one\ntwo\n", b""):
        (tmp_path / "stdout").write_bytes(content)
        output.forward()
        found.append(output.truncated)
    assert found == [False, False, False, False, True]


def test_frames_that_are_made_together_are_remembered_as_one_batch_of_a_block_at_most() -> None:
    for end, expected in ((BLOCK, [(1, 0, 0, 0, BLOCK)]), (BLOCK + 1, [(1, 9, 0, 0, 10), (9, 0, 0, 10, BLOCK + 1)])):
        batches = Batches()
        batches.add(1, 0, 0, 10, continues=False)
        batches.add(9, 0, 10, end, continues=True)
        assert list(batches.between(1, 99)) == expected
