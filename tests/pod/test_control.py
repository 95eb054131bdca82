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
    if not os.fork():
        signal.pause()  # as the driver of a turn, which lasts
    return {"accepted": True, "to": content["id"]}

control = Control(sys.argv[1], lambda first, last: iter(()), answer)
print("listens", flush=True)
while True:
    select.select([control.file], [], [])
    control.serve()
"""
WORKER = "import sys; from agent_runs.pod.sidecar.commands import main; main('claim', sys.argv[1])"


def test_a_claim_is_answered_while_the_turn_goes_on_that_it_has_begun(tmp_path: Path) -> None:
    request = b'{"id": "run/1"}'
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", SIDECAR, tmp_path], stdout=subprocess.PIPE, env=environment, start_new_session=True
    ) as sidecar:
        try:
            assert sidecar.stdout is not None
            assert sidecar.stdout.readline() == b"listens\n"
            done = subprocess.run(
                [sys.executable, "-c", WORKER, tmp_path],
                input=b"%d\n%b" % (len(request), request),
                capture_output=True,
                env=environment,
                timeout=30,
                check=True,
            )
        finally:
            os.killpg(sidecar.pid, signal.SIGKILL)
    assert done.stdout == b'{"accepted": true, "to": "run/1"}\n'


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
