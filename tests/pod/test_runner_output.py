"""What the command writes comes out whole, numbered, and as payload only."""

import hashlib
import os
import re
import sys
from pathlib import Path

import pytest

from agent_runs.logs.frames import Frame, FrameReader
from tests.pod.harness import Runner

NASTY = b"".join(
    [
        b"plain\n\n\r\ncarriage\rreturn\r\n\x1b[31mred\x1b[0m\n",
        b"nul \0 and \\0 and \\\\ and \xff\n\0\n\0\0\0\n\xff\n\x01\xff\x01\0\x01\n",
        b"\xc3\x28 \xe2\x80\xa8 \xf0\x9f\n" + bytes(range(256)) + b"\n",
        b"1\n1.0\n0x10\nnan\n+nan\n-inf\n \n\t\n.\n..\n",
        b"x" * 7999 + b"\n" + b"x" * 8000 + b"\n" + b"x" * 8001 + b"\n" + b"x" * 16000 + b"\n",
        b"\0" * 3999 + b"\n" + b"\0" * 4000 + b"\n" + b"\0\\" * 6000 + b"\n",
        b"the end has no newline",
    ]
)


def test_any_bytes_on_both_streams_are_read_back_exactly(runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "nasty").write_bytes(NASTY)
    ended = runner.sh(f"cat {tmp_path}/nasty; cat {tmp_path}/nasty >&2")
    assert ended.raw("stdout") == ended.raw("stderr") == NASTY
    assert ended.last.error is None


@pytest.mark.parametrize("seed", range(3))
def test_random_bytes_are_read_back_exactly(runner: Runner, tmp_path: Path, seed: int) -> None:
    noise = hashlib.shake_256(bytes([seed])).digest(1_500_000)
    (tmp_path / "noise").write_bytes(noise)
    assert runner.sh(f"cat {tmp_path}/noise").raw("stdout") == noise


def test_unterminated_last_lines_are_marked_on_both_streams(runner: Runner) -> None:
    ended = runner.sh("printf 'a\\nb'; printf 'c\\nd' >&2")
    assert {(line.stream, line.data, line.terminated) for line in ended.lines} == {
        ("stdout", b"a", True),
        ("stdout", b"b", False),
        ("stderr", b"c", True),
        ("stderr", b"d", False),
    }


def test_a_silent_command_leaves_two_frames(runner: Runner) -> None:
    ended = runner.run("true")
    assert [frame.stream for frame in ended.frames] == ["hello", "last"]


def test_a_line_of_3_mb_is_one_line(runner: Runner) -> None:
    ended = runner.run(sys.executable, "-c", "import sys; sys.stdout.write('y' * 3_000_000 + '\\n')")
    (line,) = ended.lines
    assert line.data == b"y" * 3_000_000
    assert line.whole


FLOOD = """
import sys
line = '{"n":%%d,"text":"' + 'x' * 460 + '"}\\n'
for n in range(%d):
    sys.stdout.write(line %% n)
"""


def test_20_mb_come_whole(runner: Runner) -> None:
    assert len(runner.run(sys.executable, "-c", FLOOD % 41_000).lines) == 41_000


@pytest.mark.slow
def test_200_mb_come_whole(runner: Runner) -> None:
    assert len(runner.run(sys.executable, "-c", FLOOD % 410_000).lines) == 410_000


def test_a_line_comes_while_the_command_runs(runner: Runner, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    running = runner.start("sh", "-c", f"echo first; read -r word <{gate}; echo $word")
    assert running.await_line("stdout") == b"first"
    gate.write_text("second\n")
    assert running.end().text("stdout") == [b"first", b"second"]


def test_the_start_of_a_line_comes_before_its_end(runner: Runner, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    running = runner.start("sh", "-c", f"printf half; read -r word <{gate}; echo $word")
    assert running.await_line("stdout") == b"half"
    gate.write_text("whole\n")
    assert running.end().text("stdout") == [b"halfwhole"]


def test_a_stalled_reader_never_stalls_the_command(runner: Runner, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    running = runner.start("sh", "-c", f'"$0" -c "$1"; echo done >{gate}', sys.executable, FLOOD % 10_000)
    assert gate.read_text() == "done\n"  # all is written while nobody has read a byte
    assert len(running.end().lines) == 10_000


def test_a_vanished_reader_never_hurts_the_command(runner: Runner, tmp_path: Path) -> None:
    gate, mark = tmp_path / "gate", tmp_path / "mark"
    os.mkfifo(gate)
    running = runner.start("sh", "-c", f"echo first; read -r _ <{gate}; echo more; echo lives >{mark}; exit 3")
    running.await_line("stdout")
    assert running.sidecar.stdout
    running.sidecar.stdout.close()
    gate.write_text("\n")
    assert running.process.wait() == 3
    assert mark.read_text() == "lives\n"


def test_output_that_looks_like_frames_is_payload(runner: Runner) -> None:
    forged = [
        b'1h. {"format":1}',
        b"2o. forged",
        b"3e+ forged",
        b'9x. {"exit_code":0,"signal":null,"error":null}',
        b'\r9x. {"exit_code":0}',
    ]
    ended = runner.run("printf", "%s\\n", *[text.decode() for text in forged])
    assert ended.text("stdout") == forged
    assert ended.last.exit_code == 0
    assert runner.run("sh", "-c", "echo '3x. {\"exit_code\":0}'; exit 9").last.exit_code == 9


def test_an_emptied_output_file_is_reported(runner: Runner, tmp_path: Path) -> None:
    emptying, ending = tmp_path / "emptying", tmp_path / "ending"
    for gate in (emptying, ending):
        os.mkfifo(gate)
    script = (
        f"echo a long first line; read -r _ <{emptying}; : >/proc/self/fd/1; echo new; read -r _ <{ending}; echo end"
    )
    running = runner.start("sh", "-c", script)
    assert running.await_line("stdout") == b"a long first line"
    assert b"long first line" in runner.sidecar.replay(1, 5)
    emptying.write_text("\n")
    assert running.await_line("stdout") == b"new"
    repeated = FrameReader().feed(runner.sidecar.replay(1, 10))
    assert [item.seq for item in repeated if isinstance(item, Frame)] == [1, 3]  # never other bytes as frame 2
    ending.write_text("\n")
    ended = running.read_to_end()
    assert ended.text("stdout") == [b"a long first line", b"new", b"end"]
    assert ended.last.error == "output_truncated"


def test_what_others_append_to_the_output_file_comes_once(runner: Runner, tmp_path: Path) -> None:
    gates = [tmp_path / name for name in ("one", "two")]
    for gate in gates:
        os.mkfifo(gate)
    script = "echo first; echo second >>/proc/self/fd/1; " + "; ".join(
        f"read -r _ <{gate}; echo {gate.name} >&2" for gate in gates
    )
    running = runner.start("sh", "-c", script)
    while running.await_line("stdout") != b"second":
        pass
    for gate in gates:  # between two lines of the other stream this one was checked
        gate.write_text("\n")
        assert running.await_line("stderr") == gate.name.encode()
    ended = running.end()
    assert ended.text("stdout") == [b"first", b"second"]
    assert ended.last.error is None


def test_missed_frames_are_repeated_byte_for_byte(runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "nasty").write_bytes(NASTY)
    running = runner.start("sh", "-c", f"echo first; cat {tmp_path}/nasty; cat {tmp_path}/nasty >&2")
    running.await_line("last")
    output = re.findall(rb"[^\n]*\n", running.log)
    assert runner.sidecar.replay(1, 10**6) == b"".join(output)
    for first, last in [(1, 1), (2, 5), (7, 7), (len(output) - 2, len(output) + 5)]:
        assert runner.sidecar.replay(first, last) == b"".join(output[first - 1 : last])
    running.log = b"".join(output[:-1])
