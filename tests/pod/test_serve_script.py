"""`serve.sh` under every shell of this machine, with a program in the server's place."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.pod.harness import SCRIPT, SHELLS, alive, children, end_session, slowed

SERVE = SCRIPT.with_name("serve.sh")


@pytest.mark.parametrize("line", ["(serve ", "    read -r _ OPENCODE_SERVER_PASSWORD"])
@pytest.mark.parametrize("shell", sorted(SHELLS))
def test_an_order_that_comes_before_the_server_has_started_ends_it(shell: str, line: str, tmp_path: Path) -> None:
    out, program = tmp_path / "out", tmp_path / "opencode"
    out.mkdir()
    os.mkfifo(out / "orders")
    (out / "ready").write_text("ready password\n")
    program.write_text('#!/bin/sh\n[ "$1" != serve ] || exec sleep 600\nexit 7\n')
    program.chmod(0o700)
    command = [*SHELLS[shell], str(slowed(SERVE, line, tmp_path)), str(out), str(program), "run"]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        with (out / "orders").open("w") as orders:
            orders.write("end 143\n")
        assert process.wait(timeout=30) == 143
    finally:
        end_session(process)


LEAVES = """#!/bin/sh
left() { echo $$ >>"$LEFT/pids"; exec sleep 600; }
case $1 in
left) [ "$2" != stubborn ] || trap '' TERM; left ;;
serve)
    "$0" left in-its-session &
    setsid env -i PATH="$PATH" LEFT="$LEFT" "$0" left without-a-variable &
    env -i PATH="$PATH" LEFT="$LEFT" sh -c 'setsid "$0" left stubborn & exit' "$0" &
    echo $$ >"$LEFT/server"
    exec sleep 600
    ;;
esac
"""


@pytest.mark.parametrize("shell", sorted(SHELLS))
def test_of_every_turn_nothing_but_the_server_is_left_when_its_pod_rests(shell: str, tmp_path: Path) -> None:
    """In a process namespace, as in a pod: the runner is pid 1, so that orphans become its children."""
    namespace = ["unshare", "-Urpf", "--mount-proc", "--kill-child"]
    if shutil.which("unshare") is None or subprocess.run([*namespace, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine allows no pid namespaces")
    out, program = tmp_path / "out", tmp_path / "opencode"
    out.mkdir()
    for name in ("orders", "agent"):
        os.mkfifo(out / name)
    (out / "ready").write_text("none password rests\n")
    program.write_text(LEAVES)
    program.chmod(0o700)
    options = map(str, (SCRIPT, "--out", out, "--dir", tmp_path, "--serve", SERVE, "--", program, "run"))
    process = subprocess.Popen(
        [*namespace, *SHELLS[shell], *options],
        env=os.environ | {"LEFT": str(tmp_path), "HOME": str(tmp_path), "OPENCODE_DISABLE_PROJECT_CONFIG": "true"},
        start_new_session=True,
    )
    try:
        wait_until(lambda: (tmp_path / "server").exists() and len(in_namespace(process, tmp_path / "pids")) == 3)
        left, (server,) = in_namespace(process, tmp_path / "pids"), in_namespace(process, tmp_path / "server")
        for word in ("first", "second", "third"):
            with (out / "orders").open("w") as orders:
                orders.write(f"rest {word} 9999999\n")
            wait_until(partial(_says, out / "idle", word))
            assert not any(map(alive, left))
            assert alive(server)
        with (out / "orders").open("w") as orders:
            orders.write("end 0\n")
        assert process.wait(timeout=60) == 0
    finally:
        end_session(process)


SLOW = """#!/bin/sh
trap 'touch "$LEFT/signalled"; exit 9' TERM
echo $$ >"$LEFT/server"
while :; do sleep 0.05; done
"""


@pytest.mark.parametrize("shell", sorted(SHELLS))
def test_a_stop_leaves_the_server_alone_while_its_turn_ends(shell: str, tmp_path: Path) -> None:
    """A busy machine took 3.3 s from the abort to the line of the tool that ran."""
    out, program = tmp_path / "out", tmp_path / "opencode"
    out.mkdir()
    for name in ("orders", "agent"):
        os.mkfifo(out / name)
    (out / "ready").write_text("none password\n")
    (out / "turn").write_text("1\n")
    program.write_text(SLOW)
    program.chmod(0o700)
    options = map(str, (SCRIPT, "--out", out, "--dir", tmp_path, "--grace", 60, "--serve", SERVE, "--", program, "run"))
    environment = os.environ | {"LEFT": str(tmp_path), "HOME": str(tmp_path), "OPENCODE_DISABLE_PROJECT_CONFIG": "true"}
    process = subprocess.Popen([*SHELLS[shell], *options], env=environment, start_new_session=True)
    try:
        wait_until((tmp_path / "server").exists)
        process.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=5)
        assert not (tmp_path / "signalled").exists()
        (out / "turn").unlink()
        with (out / "orders").open("w") as orders:
            orders.write("end 143\n")
        assert process.wait(timeout=60) == 143
    finally:
        end_session(process)


def test_a_machine_that_lists_processes_slowly_still_ends_what_a_turn_left_and_its_pod_rests(tmp_path: Path) -> None:
    out, program, scripts = tmp_path / "out", tmp_path / "opencode", tmp_path / "scripts"
    out.mkdir()
    shutil.copytree(SCRIPT.parent, scripts, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    processes = scripts / "processes.sh"
    text, look = processes.read_text(), "    marked=$("
    assert text.count(look) == 1
    processes.write_text(text.replace(look, f"    sleep 5\n{look}"))
    for name in ("orders", "agent"):
        os.mkfifo(out / name)
    (out / "ready").write_text("none password rests\n")
    program.write_text('#!/bin/sh\n(trap "" TERM; echo $$ >"$LEFT/pid"; sleep 600) & exec sleep 600\n')
    program.chmod(0o700)
    options = map(str, ("--out", out, "--dir", tmp_path, "--serve", scripts / "serve.sh", "--", program, "run"))
    command = ["sh", str(scripts / SCRIPT.name), *options]
    process = subprocess.Popen(command, env=os.environ | {"LEFT": str(tmp_path)}, start_new_session=True)
    try:
        wait_until((tmp_path / "pid").exists)
        with (out / "orders").open("w") as orders:
            orders.write("rest a-word 9999999\n")
        wait_until(partial(_says, out / "idle", "a-word"))
        with (out / "orders").open("w") as orders:
            orders.write("end 0\n")
        assert process.wait(timeout=60) == 0
    finally:
        end_session(process)


def in_namespace(process: subprocess.Popen[bytes], listed: Path) -> list[int]:
    """The processes whose numbers there are in this file, by their numbers here."""
    numbers = set(listed.read_text().split()) if listed.exists() else set()
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            seen = next(line.split()[1:] for line in status.read_text().splitlines() if line.startswith("NSpid:"))
        except (OSError, StopIteration):
            continue
        if len(seen) == 2 and seen[1] in numbers and _is_below(process.pid, int(seen[0])):
            found.append(int(seen[0]))
    return found


def _says(file: Path, word: str) -> bool:
    try:
        return file.read_text() == f"{word}\n"
    except FileNotFoundError:  # each order removes what the one before has left
        return False


def _is_below(namespace: int, pid: int) -> bool:
    try:
        runner = next(iter(children(namespace)))
        return Path(f"/proc/{pid}/ns/pid").readlink() == Path(f"/proc/{runner}/ns/pid").readlink()
    except (OSError, StopIteration):
        return False


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)
