"""The sidecar's own half of driving: it starts the driver's process, and ends its turn."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent_runs.pod.sidecar.drivers.folder import END, STATE, TURN, End
from agent_runs.pod.sidecar.drivers.opencode_server import drive as opencode
from agent_runs.pod.sidecar.drivers.opencode_server.turn import State, Turn
from agent_runs.pod.sidecar.drivers.waiting import Aborted
from agent_runs.pod.sidecar.driving import Driving
from dev_stack.plan import ROOT
from tests.pod.acp import PROFILES, acp_turn
from tests.pod.harness import end_session

SIDECAR = """
import os, signal, sys, time
from agent_runs.pod.sidecar.driving import Driving
from agent_runs.pod.sidecar.drivers.acp import AcpAgent

load = AcpAgent.load
def load_slowly(agent):
    time.sleep(0.5)
    return load(agent)
AcpAgent.load = load_slowly

signal.signal(signal.SIGTERM, lambda *_: None)
output, own, turn = sys.argv[1:]
driving = Driving(output, own, turn, "none", lambda: False)
driving.begin()
driving.abort()
ended, _ = os.wait()
assert driving.has_ended(ended)
print(open(f"{own}/turn-1/end").read())
"""


def test_a_stop_that_comes_while_the_driver_starts_aborts_the_turn(tmp_path: Path) -> None:
    output, own, turn = (tmp_path / name for name in ("output", "own", "turn.json"))
    for folder in (output, own):
        folder.mkdir()
    turn.write_text(json.dumps(acp_turn(tmp_path, PROFILES["claude"], text="go")))
    with subprocess.Popen(
        [sys.executable, "-c", SIDECAR, output, own, turn],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as sidecar:
        try:
            end, _ = sidecar.communicate(timeout=60)
        finally:
            end_session(sidecar)
    assert json.loads(end)["reason"] == "aborted"


@pytest.mark.parametrize("sent", [False, True])
def test_a_stop_of_a_driver_that_takes_the_place_of_another_says_what_is_known_of_the_prompt(
    sent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def aborted(*_: object) -> int:
        raise Aborted

    monkeypatch.setattr(opencode, "Waiter", lambda: None)  # it is for a process of its own
    monkeypatch.setattr(opencode, "await_address", aborted)
    (tmp_path / TURN).write_text(json.dumps(dict.fromkeys(Turn._fields)))
    (tmp_path / STATE).write_text(json.dumps(State(session="ses_1", sent=sent)._asdict()))
    opencode.drive(str(tmp_path))
    end = json.loads((tmp_path / END).read_text())
    assert (end["reason"], end["session"]) == ("aborted", "ses_1")
    assert end["detail"] == ("" if sent else "aborted before the prompt was sent")


@pytest.mark.parametrize("driver", ["acp", None])
def test_an_agent_that_does_not_take_its_next_turn_is_ended(
    driver: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Job is marked as claimed by then, so nobody would claim it again."""
    monkeypatch.setattr("agent_runs.pod.sidecar.driving.IDLE_SECONDS", 0)
    output, own, turn = (tmp_path / name for name in ("output", "own", "turn.json"))
    for folder in (output, own):
        folder.mkdir()
    rest = {"driver": driver, "keep_warm": 60, "max_age": 3600, "pod": "a-digest"}
    turn.write_text(json.dumps(acp_turn(tmp_path, {}, text="go", **rest)))
    driving = Driving(str(output), str(own), str(turn), "none", lambda: False)
    (own / "turn-1" / "end").write_text(json.dumps(End(0)._asdict()))
    assert driving.has_ended(0)
    rested_until = driving.rests_until
    answer = driving.claimed({"id": "two/1", "pod": "a-digest", "environment": {}, "paths": {}}, 1)
    assert rested_until is not None
    assert (answer["accepted"], driving.rests_until) == (False, None)
    orders = os.read(os.open(output / "orders", os.O_RDONLY | os.O_NONBLOCK), 1000)
    assert orders.splitlines()[1:] == [b"end 0"]
