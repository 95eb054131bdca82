"""The runner and the sidecar: the runner waits for it, and the sidecar sees the runner's end, however that comes."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agent_runs.logs.frames import LastFrame
from tests.pod.harness import RUN_TIMEOUT, Runner, Running

UPSTREAM = {"PAPERCLIP_UPSTREAM_URL": "http://127.0.0.1:1"}


def address(runner: Runner) -> str:
    return (runner.out / "ready").read_text().strip()


def test_the_command_gets_the_address_of_the_api(runner: Runner) -> None:
    runner.sidecar.env = UPSTREAM
    runner.options += ["--api-variable", "TOOLS_URL", "--api-variable", "NEVER_SET"]
    runner.env = {"TOOLS_URL": "/mcp/tools?a=$(touch x)&b='\"`", "PAPERCLIP_API_URL": "http://elsewhere"}
    ended = runner.run("sh", "-c", 'echo "$PAPERCLIP_API_URL|$TOOLS_URL|$NEVER_SET"; ls')
    url = address(runner)
    expected = f"{url}|{url}/mcp/tools?a=$(touch x)&b='\"`|{url}"
    assert ended.text("stdout") == [expected.encode()]


def test_without_an_api_the_environment_stays_as_it_is(runner: Runner) -> None:
    runner.env = {"PAPERCLIP_API_URL": "http://elsewhere"}
    assert runner.sh("echo $PAPERCLIP_API_URL").text("stdout") == [b"http://elsewhere"]


def test_the_command_waits_for_the_sidecar(runner: Runner) -> None:
    runner.out.mkdir()
    (runner.home / "prompt").touch()
    process = subprocess.Popen(runner.argv("echo", "begun"))
    sidecars: list[subprocess.Popen[bytes]] = []
    later = threading.Timer(0.3, lambda: sidecars.append(runner.sidecar.start(new=False)))
    later.start()
    later.join()
    runner.started += [process, *sidecars]
    assert Running(process, sidecars[0], runner.out).end().text("stdout") == [b"begun"]


def test_without_the_sidecar_nothing_is_started(runner: Runner, tmp_path: Path) -> None:
    runner.out.mkdir()
    runner.options += ["--sidecar-timeout", "0"]
    done = subprocess.run(runner.argv("touch", str(tmp_path / "started")), capture_output=True, timeout=RUN_TIMEOUT)
    assert (done.returncode, done.stdout, done.stderr) == (125, b"", b"runner.sh: sidecar (--out)\n")
    assert not (tmp_path / "started").exists()


def test_a_stop_ends_the_wait_for_the_sidecar(runner: Runner) -> None:
    runner.out.mkdir()
    process = subprocess.Popen(runner.argv("true"))
    while not catches(process.pid, signal.SIGHUP):
        pass
    process.terminate()
    assert process.wait(RUN_TIMEOUT) == 143


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for this signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def test_a_killed_runner_ends_the_output_without_an_exit_code(runner: Runner) -> None:
    running = runner.start("sh", "-c", "echo begun; echo more >&2; exec sleep 2")
    running.await_line("stdout")
    running.process.kill()
    last = LastFrame.parse(running.await_line("last"))
    assert (last.exit_code, last.signal, last.error) == (None, None, None)
    assert b"more" in running.log


def test_what_the_agent_writes_into_the_fifo_is_no_result(runner: Runner) -> None:
    """The agent has the runner's user, so it can open what the runner has open."""
    pid = runner.home / "pid"
    os.mkfifo(pid)
    running = runner.start(
        "sh", "-c", f"read -r pid <{pid}; echo 'result 0 null false null null null null' >/proc/$pid/fd/9; exit 9"
    )
    pid.write_text(f"{running.process.pid}\n")
    ended = running.end()
    assert (ended.code, ended.text("stderr"), ended.last.exit_code) == (9, [], None)


def test_neither_the_command_nor_its_tools_inherit_the_fifo(runner: Runner) -> None:
    code = "import os; print([os.path.realpath(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd')])"
    ended = runner.run("sh", "-c", f'{sys.executable} -c "{code}"')
    assert str(runner.out / "agent").encode() not in ended.text("stdout")[0]


@pytest.mark.parametrize("name", ["1A", "A;touch x", "A=b", "A-B"])
def test_only_names_of_variables_are_taken(runner: Runner, name: str) -> None:
    runner.options += ["--api-variable", name]
    done = subprocess.run(runner.argv("true"), capture_output=True)
    assert (done.returncode, done.stderr[:11]) == (64, b"runner.sh: ")
