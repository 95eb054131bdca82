"""The sidecar's commands, from the process that `exec` starts to the socket and back."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from agent_runs.pod.sidecar.main import NOT_DRIVEN
from dev_stack.plan import ROOT
from tests.pod.harness import Sidecar

SIDECAR = """
import os, select, signal, sys
from agent_runs.pod.sidecar.control import Control

def answer(command, content):
    if command == "tell":
        return next(ANSWERS)
    if not os.fork():
        signal.pause()  # as the driver of a turn, which lasts
    return {"accepted": True, "to": content["id"]}

ON_ITS_WAY, THERE = {"accepted": True}, {"accepted": True, "delivered": True}
ANSWERS = iter([ON_ITS_WAY, ON_ITS_WAY, *([THERE] if "gone" not in sys.argv else [])])
control = Control(sys.argv[1], lambda first, last: iter(()), answer)
print("listens", flush=True)
while True:
    select.select([control.file], [], [])
    control.serve()
"""
"""One that ends where it has no answer left."""
WORKER = "import sys; from agent_runs.pod.sidecar.commands import main; main(sys.argv[1], sys.argv[2])"


def answer_of(folder: Path, command: str, *words: str) -> bytes:
    """What the worker's command prints; the sidecar takes these words."""
    request = b'{"id": "run/1"}'
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", SIDECAR, folder, *words], stdout=subprocess.PIPE, env=environment, start_new_session=True
    ) as sidecar:
        try:
            assert sidecar.stdout is not None
            assert sidecar.stdout.readline() == b"listens\n"
            done = subprocess.run(
                [sys.executable, "-c", WORKER, command, folder],
                input=b"%d\n%b" % (len(request), request),
                capture_output=True,
                env=environment,
                timeout=30,
                check=True,
            )
        finally:
            os.killpg(sidecar.pid, signal.SIGKILL)
    return done.stdout


def test_a_claim_is_answered_while_the_turn_goes_on_that_it_has_begun(tmp_path: Path) -> None:
    assert answer_of(tmp_path, "claim") == b'{"accepted": true, "to": "run/1"}\n'


def test_one_command_learns_that_its_message_is_delivered(tmp_path: Path) -> None:
    assert answer_of(tmp_path, "tell") == b'{"accepted": true, "delivered": true}\n'


def test_a_sidecar_that_ends_after_it_took_a_message_is_not_said_to_have_missed_it(tmp_path: Path) -> None:
    assert answer_of(tmp_path, "tell", "gone") == b'{"accepted": true}\n'


def test_the_command_line_of_opencode_takes_no_message(tmp_path: Path) -> None:
    sidecar = Sidecar(tmp_path)
    with sidecar.start() as process:
        try:
            while not (sidecar.out / "ready").exists():
                assert process.poll() is None
                time.sleep(0.05)
            answer = sidecar.ask("tell", {"id": "m1", "by": "ada", "text": "hello"})
        finally:
            process.kill()
    assert answer == {"accepted": False, "reason": NOT_DRIVEN}
