"""The sidecar's commands, from the process that `exec` starts to the socket and back."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from dev_stack.plan import ROOT

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
