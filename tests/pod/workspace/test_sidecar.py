"""The sidecar of a carried workspace: checkpoints after steps, and one before the last frame."""

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runs.pod.sidecar.workspace.keeping import Keeping, Steps
from agent_runs.workspace.tree import digest
from tests.pod.harness import LAST, SHELLS, Ended, Runner, Running, children
from tests.pod.workspace.pods import Pod
from tests.pod.workspace.service import Run, Service

STEP = '{"type":"step_finish","timestamp":1,"sessionID":"ses_%d","part":{"id":"prt_1","reason":"stop"}}'
AGENT = f"""
printf one >a
echo '{STEP % 1}'
read -r _ <go
printf two >a
echo '{STEP % 2}'
"""


@pytest.fixture
def runner(pod: Pod, tmp_path: Path) -> Iterator[Runner]:
    """A runner that works in the pod's workspace, and whose sidecar carries that."""
    home = tmp_path / "runner"
    home.mkdir()
    runner = Runner(SHELLS["dash"], home, options=["--dir", str(pod.workspace)])
    runner.sidecar.workspace = pod.config(interval=0, retry_sec=20)
    for name in ("go", "end"):
        os.mkfifo(pod.workspace / name)
    yield runner
    runner.clean_up()


def workspace_of(log: bytes) -> Any:
    """What the last frame says of the workspace."""
    (last,) = (line for line in log.splitlines() if LAST.match(line))
    return json.loads(last.partition(b". ")[2]).get("workspace")


def keeper_of(running: Running) -> int:
    """The keeper's process, as soon as it is there."""
    while True:
        for pid in children(running.sidecar.pid):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if b"keep" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    return pid
        time.sleep(0.01)


def go(pod: Pod, on: str = "go") -> None:
    """Let the agent go on, which reads this FIFO."""
    (pod.workspace / on).write_text("\n")


def await_checkpoints(run: Run, number: int) -> None:
    while len(run.ledger()) < number:
        time.sleep(0.02)


def ended(running: Running) -> tuple[Ended, Any]:
    end = running.read_to_end()
    return end, workspace_of(end.log)


def test_a_step_is_followed_by_a_checkpoint_and_the_end_by_the_last_one(runner: Runner, pod: Pod, run: Run) -> None:
    running = runner.start("sh", "-c", AGENT)
    await_checkpoints(run, 1)
    go(pod)
    end, workspace = ended(running)
    assert end.last.exit_code == 0
    assert (workspace["steps"], workspace["error"]) == (2, None)
    ledger = run.ledger()
    assert workspace["number"] == max(ledger)
    first, last = ledger[1], ledger[max(ledger)]
    assert (first.kind, first.steps, first.session) == ("checkpoint", 1, "ses_1")
    assert (last.kind, last.steps, last.session) == ("end", 2, "ses_2")
    assert run.tree()["workspace/a"]["blocks"] == [digest(b"two")]
    assert run.tree(1)["workspace/a"]["blocks"] == [digest(b"one")]


def test_an_agent_whose_container_is_killed_is_carried(runner: Runner, pod: Pod, run: Run) -> None:
    running = runner.start("sh", "-c", AGENT, session=True)
    await_checkpoints(run, 1)
    (pod.workspace / "b").write_bytes(b"more")
    os.killpg(running.process.pid, signal.SIGKILL)
    _, workspace = ended(running)
    assert (workspace["steps"], workspace["error"]) == (1, None)
    assert run.ledger()[workspace["number"]].kind == "end"
    assert run.tree()["workspace/b"]["size"] == 4


def test_a_pod_that_is_deleted_is_carried_in_its_grace(runner: Runner, pod: Pod, run: Run) -> None:
    running = runner.start("sh", "-c", AGENT)
    await_checkpoints(run, 1)
    (pod.workspace / "b").write_bytes(b"more")
    running.stop()
    end, workspace = ended(running)
    assert (end.last.stopped_by, workspace["error"]) == ("TERM", None)
    assert run.tree()["workspace/b"]["size"] == 4


def test_a_deleted_pod_does_not_wait_for_a_store_that_is_away(runner: Runner, run: Run, service: Service) -> None:
    running = runner.start("sh", "-c", AGENT)
    await_checkpoints(run, 1)
    service.away = True
    began = time.monotonic()
    running.stop()
    _, workspace = ended(running)
    assert time.monotonic() - began < 10, "Kubernetes would have killed the sidecar"
    assert (workspace["number"], workspace["steps"], workspace["error"]["code"]) == (1, 1, "cut_off")


def test_a_last_checkpoint_that_takes_too_long_is_named(runner: Runner, pod: Pod, run: Run, service: Service) -> None:
    runner.sidecar.workspace = pod.config(interval=0, last_sec=1)
    running = runner.start("sh", "-c", AGENT)
    await_checkpoints(run, 1)
    released = threading.Event()

    def hold(_: str) -> None:
        released.wait(60)

    service.before = hold
    go(pod)
    _, workspace = ended(running)
    released.set()
    assert (workspace["number"], workspace["steps"], workspace["error"]["code"]) == (1, 1, "too_slow")


def test_steps_that_a_keeper_has_no_time_to_read_do_not_hide_the_end(pod: Pod) -> None:
    keeping = Keeping(str(pod.config()))  # its process is not started, so nobody reads
    for _ in range(10_000):
        keeping.saw(f"{STEP % 1}\n".encode())
    keeping.end()
    words = os.read(keeping._read_by_it, 10**6)
    assert words.endswith(b" ses_1\n")
    assert b"end" not in words
    keeping.take()
    assert os.read(keeping._read_by_it, 10**6) == b"end 10000 ses_1\n"


def test_a_keeper_that_is_killed_is_replaced(runner: Runner, pod: Pod, run: Run) -> None:
    running = runner.start("sh", "-c", AGENT)
    await_checkpoints(run, 1)
    os.kill(keeper_of(running), signal.SIGKILL)
    (pod.workspace / "b").write_bytes(b"more")
    go(pod)
    _, workspace = ended(running)
    assert (workspace["steps"], workspace["error"]) == (2, None)
    assert run.tree()["workspace/b"]["size"] == 4


def test_a_keeper_that_always_dies_is_named_and_the_last_checkpoint_too(runner: Runner, pod: Pod, run: Run) -> None:
    running = runner.start("sh", "-c", f"{AGENT}read -r _ <end")
    await_checkpoints(run, 1)
    go(pod)
    await_checkpoints(run, 2)  # so the keeper has written its line about the first one
    killed = set[int]()
    while len(killed) < 4:
        if (keeper := keeper_of(running)) not in killed:
            os.kill(keeper, signal.SIGKILL)
            killed.add(keeper)
    go(pod, "end")
    _, workspace = ended(running)
    assert workspace["error"]["code"] == "keeper_failed"
    assert workspace["number"] == workspace["steps"] in (1, 2)


def test_a_pod_without_the_file_has_no_workspace(runner: Runner, pod: Pod, run: Run) -> None:
    pod.config().unlink()
    end = runner.start("true").read_to_end()
    assert workspace_of(end.log) is None
    assert run.ledger() == {}


@given(st.lists(st.sampled_from([0, 1, 2, 3]), max_size=8), st.lists(st.integers(1, 200), max_size=40))
def test_steps_are_counted_in_any_pieces(kinds: list[int], sizes: list[int]) -> None:
    texts = ("text\n", STEP % 7 + "\n", STEP % 8 + "x" * 5000 + "\n", '{"type":"text","part":"\\"step_finish\\""}\n')
    output, steps = "".join(texts[kind] for kind in kinds).encode(), Steps()
    for size in sizes:
        steps.add(output[:size])
        output = output[size:]
    steps.add(output)
    sessions = ["", "ses_7", "ses_8", ""]
    found = [sessions[kind] for kind in kinds if kind in (1, 2)]
    assert (steps.number, steps.session) == (len(found), found[-1] if found else "")
