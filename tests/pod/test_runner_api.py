"""The runner and the Paperclip API proxy: the runner waits for it, and the proxy lives as long as the runner."""

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.pod.harness import RUN_TIMEOUT, Runner, read_back

ADDRESS = "http://127.0.0.1:4711"


@dataclass
class Proxy:
    """What the proxy does in the shared folder: a FIFO that it reads, and a file with its address."""

    folder: Path
    reading: int

    def publish(self) -> None:
        (self.folder / "url.new").write_text(f"{ADDRESS}\n")
        (self.folder / "url.new").rename(self.folder / "url")

    @property
    def alone(self) -> bool:
        """Whether no process has the FIFO open any more."""
        poll = select.poll()
        poll.register(self.reading, select.POLLIN)
        return any(event & select.POLLHUP for _, event in poll.poll(RUN_TIMEOUT * 1000))


@pytest.fixture
def proxy(runner: Runner, tmp_path: Path) -> Iterator[Proxy]:
    folder = tmp_path / "api"
    folder.mkdir()
    os.mkfifo(folder / "agent")
    reading = os.open(folder / "agent", os.O_RDONLY | os.O_NONBLOCK)
    runner.options = ["--acknowledge-timeout", "0", "--api", str(folder)]
    yield Proxy(folder, reading)
    os.close(reading)


def test_the_command_gets_the_address_of_the_api(runner: Runner, proxy: Proxy) -> None:
    proxy.publish()
    runner.options += ["--api-variable", "TOOLS_URL", "--api-variable", "NEVER_SET"]
    runner.env = {"TOOLS_URL": "/mcp/tools?a=$(touch x)&b='\"`", "PAPERCLIP_API_URL": "http://elsewhere"}
    ended = runner.run("sh", "-c", 'echo "$PAPERCLIP_API_URL|$TOOLS_URL|$NEVER_SET"; ls')
    expected = f"{ADDRESS}|{ADDRESS}/mcp/tools?a=$(touch x)&b='\"`|{ADDRESS}"
    assert ended.text("stdout") == [expected.encode()]


def test_the_command_waits_for_the_proxy(runner: Runner, proxy: Proxy) -> None:
    later = threading.Timer(0.3, proxy.publish)
    later.start()
    ended = runner.run("sh", "-c", "echo $PAPERCLIP_API_URL")
    later.join()
    assert ended.text("stdout") == [ADDRESS.encode()]


def test_without_the_proxy_nothing_is_started(runner: Runner, proxy: Proxy, tmp_path: Path) -> None:
    del proxy
    runner.options += ["--api-timeout", "0"]
    log, stderr = runner.start("touch", str(tmp_path / "started")).process.communicate(timeout=RUN_TIMEOUT)
    last = read_back(log, 125).last
    assert (last.exit_code, last.error, last.detail) == (125, "api", "--api")
    assert stderr == b""
    assert not (tmp_path / "started").exists()


def test_a_stop_ends_the_wait_for_the_proxy(runner: Runner, proxy: Proxy) -> None:
    del proxy
    running = runner.start("true")
    while not (runner.out / "running").exists():
        pass
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(RUN_TIMEOUT) == 143
    running.process.communicate()


def test_the_proxy_sees_the_end_of_a_run(runner: Runner, proxy: Proxy) -> None:
    proxy.publish()
    runner.sh("sleep 600 & echo done")
    assert proxy.alone


def test_the_proxy_sees_a_runner_that_was_killed(runner: Runner, proxy: Proxy) -> None:
    proxy.publish()
    running = runner.start("sh", "-c", "echo begun; exec sleep 2")
    running.await_line("stdout")
    running.process.kill()
    assert running.process.wait(RUN_TIMEOUT) == -signal.SIGKILL
    assert proxy.alone
    running.process.communicate(timeout=RUN_TIMEOUT)


def test_neither_the_command_nor_its_tools_inherit_the_lifetime_fifo(runner: Runner, proxy: Proxy) -> None:
    proxy.publish()
    code = "import os; print([os.path.realpath(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd')])"
    ended = runner.run("sh", "-c", f'{sys.executable} -c "{code}"')
    assert str(proxy.folder).encode() not in ended.text("stdout")[0]


@pytest.mark.parametrize("name", ["1A", "A;touch x", "A=b", "A-B"])
def test_only_names_of_variables_are_taken(runner: Runner, name: str) -> None:
    runner.options += ["--api-variable", name]
    done = subprocess.run(runner.argv("true"), capture_output=True)
    assert (done.returncode, done.stderr[:11]) == (64, b"runner.sh: ")
