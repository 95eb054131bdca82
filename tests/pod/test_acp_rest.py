"""A pod of an agent that speaks ACP rests, and takes the next run: the real runner and sidecar, a recorded agent."""

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_runs.logs.frames import LastFrame
from agent_runs.pod.sidecar.commands import NOT_REACHED
from tests.pod.acp import CAPTURES, HIDDEN, PLAYER, PROFILES, SCRIPT, acp_turn
from tests.pod.harness import RUN_TIMEOUT, SHELLS, Runner, Running, alive

POD = "a-digest"
CAPTURE = CAPTURES / "claude" / "text.jsonl"


class Pod:
    """A pod whose agent notes its variables at each start, and does this before it plays the recording."""

    def __init__(self, folder: Path, shell: list[str], before: str = "", **turn: Any) -> None:
        self.folder, self.starts = folder, folder / "starts"
        self.runner = Runner(shell, folder, options=["--serve", str(SCRIPT)], env={"PAPERCLIP_RUN_ID": "one"})
        self.turn = acp_turn(self.runner.work, PROFILES["claude"], text="go")
        rest = {"keep_warm": 60, "max_age": 3600, "max_memory": 0, "pod": POD, "variables": ["PAPERCLIP_RUN_ID"]}
        self.runner.sidecar.turn = folder / "turn.json"
        self.runner.sidecar.turn.write_text(json.dumps(self.turn | rest | turn))
        note = f'echo "${{PAPERCLIP_RUN_ID-none}} $TASK" >> {self.starts}'
        player = shlex.join([sys.executable, "-I", "-S", str(PLAYER), str(CAPTURE)])
        self.run: Running = self.runner.start("sh", "-c", f"{note}; {before}\nexec {player}")

    def end_of_turn(self) -> tuple[LastFrame, list[str]]:
        """The last frame of the next turn, and the types of its lines."""
        output = b""
        while (frame := self.run.frame()).stream != "last":
            output += frame.payload + b"\n" if frame.stream == "stdout" else b""
        kinds = [json.loads(line)["type"] for line in output.splitlines() if line.startswith(b"{")]
        return LastFrame.parse(frame.payload), [kind for kind in kinds if kind not in HIDDEN]

    def claim(self, run: str = "two/1", pod: str = POD, **variables: str) -> dict[str, Any]:
        """The sidecar's answer to this claim."""
        request = {"id": run, "pod": pod, "turn": self.turn, "environment": variables, "paths": {}}
        content = json.dumps(request | {"tokens": {"token": "t", "run_id": run, "tools_token": None}}).encode()
        done = subprocess.run(
            self.runner.sidecar.argv("claim", str(self.runner.sidecar.control)),
            input=b"%d\n%b" % (len(content), content),
            stdout=subprocess.PIPE,
            timeout=RUN_TIMEOUT,
            check=True,
        )
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    @property
    def tokens(self) -> dict[str, Any]:
        """Those that the sidecar was given."""
        read: dict[str, Any] = json.loads((self.runner.sidecar.control / "tokens.json").read_text())
        return read


@pytest.fixture(params=sorted(SHELLS))
def shell(request: pytest.FixtureRequest) -> list[str]:
    return SHELLS[request.param]


@pytest.fixture
def pods() -> Iterator[list[Pod]]:
    opened: list[Pod] = []
    yield opened
    for pod in opened:
        pod.runner.clean_up()


def test_each_run_has_a_process_of_its_own_with_its_variables_alone(
    shell: list[str], tmp_path: Path, pods: list[Pod]
) -> None:
    hold = tmp_path / "hold"
    pods.append(pod := Pod(tmp_path, shell, f"while [ -e {hold} ]; do sleep 0.05; done"))
    first, kinds = pod.end_of_turn()
    assert (first.rests, first.exit_code, first.error) == (True, 0, None)
    assert pod.tokens == {}
    hold.touch()
    answer = pod.claim(PAPERCLIP_RUN_ID="two", TASK="it's")
    assert answer["accepted"] is True
    assert pod.claim(PAPERCLIP_RUN_ID="two", TASK="it's") == answer
    assert pod.tokens["run_id"] == "two/1"
    hold.unlink()
    second, again = pod.end_of_turn()
    assert (second.rests, second.exit_code, again) == (True, 0, kinds)
    assert pod.claim("three/1")["accepted"] is True
    assert pod.end_of_turn()[1] == kinds
    assert pod.starts.read_text() == "one \ntwo it's\nnone \n"


def test_a_claim_is_answered_while_its_run_still_works(tmp_path: Path, pods: list[Pod]) -> None:
    hold = tmp_path / "hold"
    pods.append(pod := Pod(tmp_path, ["sh"], f"while [ -e {hold} ]; do sleep 0.05; done"))
    pod.end_of_turn()
    hold.touch()
    assert pod.claim()["accepted"] is True
    hold.unlink()
    last, _ = pod.end_of_turn()
    assert (last.error, last.rests) == (
        None,
        True,
    )  # it does not wait for its agent in vain until the claim is answered


def test_a_claim_for_another_pod_is_refused_and_the_pod_still_rests(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(pod := Pod(tmp_path, ["sh"]))
    pod.end_of_turn()
    assert pod.claim(pod="other")["reason"] == "the pod is made for another configuration"
    assert pod.claim()["accepted"] is True


@pytest.mark.parametrize("name", ["environment", "protocol"])
def test_a_folder_that_the_agent_has_put_in_the_place_of_a_file_ends_the_rest(
    name: str, tmp_path: Path, pods: list[Pod]
) -> None:
    pods.append(pod := Pod(tmp_path, ["sh"]))
    assert pod.end_of_turn()[0].rests
    (pod.run.out / name).unlink(missing_ok=True)
    (pod.run.out / name / "folder").mkdir(parents=True)
    assert pod.claim()["reason"] == "the agent's container does not answer"
    assert pod.tokens == {}
    assert pod.run.process.wait(timeout=RUN_TIMEOUT) == 0


def test_an_agent_that_fails_does_not_rest(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(pod := Pod(tmp_path, ["sh"], "exit 3"))
    last, _ = pod.end_of_turn()
    assert (last.rests, last.error) == (False, "agent_not_started")
    assert pod.run.process.wait(timeout=RUN_TIMEOUT) == 3


def test_a_stop_ends_a_pod_that_rests(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(pod := Pod(tmp_path, ["sh"]))
    pod.end_of_turn()
    pod.run.stop()
    assert pod.run.process.wait(timeout=RUN_TIMEOUT) in (0, 143)


def test_what_is_written_after_the_turn_of_a_pod_that_rests_makes_no_frame(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(pod := Pod(tmp_path, ["sh"]))
    pod.end_of_turn()
    with (pod.run.out / "stderr").open("a") as file:
        file.write("late\n")
    pod.run.stop()
    rest, _ = pod.run.sidecar.communicate(timeout=RUN_TIMEOUT)
    assert rest == b""


def test_a_stop_tells_of_the_run_of_now_alone(tmp_path: Path, pods: list[Pod]) -> None:
    left, hold = tmp_path / "left", tmp_path / "hold"
    stubborn = f"[ $PAPERCLIP_RUN_ID != one ] || {{ (trap '' TERM; exec sleep 600) & echo $! > {left}; }}"
    pods.append(pod := Pod(tmp_path, ["sh"], f"{stubborn}; while [ -e {hold} ]; do sleep 0.05; done"))
    pod.end_of_turn()
    while alive(int(left.read_text())):
        time.sleep(0.05)
    hold.touch()
    assert pod.claim(PAPERCLIP_RUN_ID="two")["accepted"] is True
    pod.run.stop()
    last, _ = pod.end_of_turn()
    assert (last.stopped_by, last.grace_exceeded) == ("TERM", False)


def test_a_rest_that_is_over_ends_the_pod(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(pod := Pod(tmp_path, ["sh"], keep_warm=0.2))
    assert pod.end_of_turn()[0].rests
    assert pod.run.process.wait(timeout=RUN_TIMEOUT) == 0


@pytest.mark.slow
def test_a_sidecar_that_dies_leaves_a_container_that_ends_by_itself(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(pod := Pod(tmp_path, ["sh"], keep_warm=1))
    pod.end_of_turn()
    pod.run.sidecar.kill()
    assert pod.run.process.wait(timeout=RUN_TIMEOUT) == 0


def test_a_claim_that_comes_when_the_sidecar_has_ended_says_that_nobody_has_got_it(
    tmp_path: Path, pods: list[Pod]
) -> None:
    pods.append(pod := Pod(tmp_path, ["sh"]))
    pod.end_of_turn()
    pod.run.stop()
    pod.run.sidecar.wait(timeout=RUN_TIMEOUT)
    with pytest.raises(subprocess.CalledProcessError) as failure:
        pod.claim()
    assert failure.value.returncode == NOT_REACHED
