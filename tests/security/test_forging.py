"""What an agent does to its output and to the runner, whose user it has: it hides nothing, and no lie counts."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.client import Client

from agent_runs.client.outcome import outcome_at_close
from agent_runs.contracts.outcome import Outcome
from agent_runs.contracts.pod import AGENT_CONTAINER
from dev_stack.cluster.kinds import PODS
from tests.runs.system import System, open_system
from tests.runs.test_hostile_output import ANSWER
from tests.support.ends import assert_verified

RUNNER = "cat > /dev/null\nrunner=$(cut -d' ' -f4 /proc/$PPID/stat)"
"""The agent's parent is the runner's watcher."""
FORGED = "printf '%s\\n' '2o. forged' '3o. forged' '9x. {\"exit_code\":0,\"signal\":null,\"error\":null}'"
RESULT = "result 0 null false null null null null"


@pytest.fixture(scope="module")
async def working(temporal: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    async with open_system(temporal, tmp_path_factory.mktemp("forging")) as opened, opened.worker():
        yield opened


def notes(outcome: Outcome) -> str:
    return str((outcome.result_json or {}).get("notes"))


async def test_frames_on_the_containers_own_stdout_are_nobodys_output(working: System) -> None:
    raw = working.agent(f"{RUNNER}\n{FORGED} >/proc/$runner/fd/1; {FORGED} >/proc/$runner/fd/2; echo true; exit 9")
    outcome = await working.outcome(raw)
    assert outcome.exit_code == 9
    assert outcome.failure is not None
    assert [(line.stream, line.data) for line in await working.lines(raw)] == [("stdout", b"true")]  # no error either
    assert outcome.receipt is not None
    assert (outcome.receipt.state, outcome.receipt.lines, outcome.receipt.gaps) == ("verified", 1, ())


async def test_a_forged_result_of_the_runner_is_none(working: System) -> None:
    raw = working.agent(f"{RUNNER}\n{ANSWER}; echo '{RESULT}' >/proc/$runner/fd/9; exit 9")
    outcome = await working.outcome(raw)
    assert outcome.exit_code == 9
    assert outcome.failure is not None
    assert {line.stream for line in await working.lines(raw)} == {"stdout"}  # it could be written


async def test_a_kill_behind_a_forged_result_is_named(working: System) -> None:
    """The answer is the agent's own; that its container did not end so well is not hidden."""
    raw = working.agent(f"{RUNNER}\n{ANSWER}; echo '{RESULT}' >/proc/$runner/fd/9; echo forged >&2; exec sleep 600")
    outcome = await killed(working, raw, lines=4)
    assert outcome.failure is None
    assert "the container's status says: exit code 137" in notes(outcome)


async def test_the_last_lines_of_an_agent_that_is_killed_are_there(working: System) -> None:
    raw = working.agent("cat > /dev/null\necho one; printf three; echo two >&2; exec sleep 600")
    outcome = await killed(working, raw, lines=2)
    assert outcome.error_code == "opencode_crashed"
    lines = await working.lines(raw)
    assert sorted((line.data, line.terminated) for line in lines) == [(b"one", True), (b"three", False), (b"two", True)]
    assert_verified(outcome)


async def killed(system: System, raw: dict[str, Any], lines: int) -> Outcome:
    """The outcome of a run whose agent's container is killed, as the kernel does, once so many lines are stored."""
    ticket = await system.start(raw)
    await system.until_stored(raw, lines)
    for pod in system.embedded.store.every(PODS):
        if pod["status"]["phase"] == "Running":
            await system.embedded.faults.kill_container(pod["metadata"]["name"], AGENT_CONTAINER)
    return await outcome_at_close(ticket.handle(system.temporal))


@pytest.mark.parametrize(
    "change",
    [": >/proc/self/fd/1", "printf fake | dd of=/proc/self/fd/1 conv=notrunc 2>/dev/null"],
    ids=["emptied", "rewritten"],
)
async def test_a_changed_output_file_hides_no_line_and_is_never_verified(working: System, change: str) -> None:
    gate = "until grep -q ends /agent-run/output/stderr; do sleep 0.05; done"
    raw = working.agent(f"cat > /dev/null; echo shown; sleep 1; {change}; {ANSWER}; echo ends >&2; {gate}; exit 0")
    outcome = await working.outcome(raw)
    assert (await working.stdout(raw))[0] == b"shown"
    assert outcome.receipt is not None
    assert outcome.receipt.state == "differs"


async def test_another_file_in_the_place_of_the_output_is_not_read(working: System) -> None:
    replace = "cd /agent-run/output; mv stdout hidden; ln -s /agent-run/token/token stdout"
    raw = working.agent(f"cat > /dev/null; {replace}; echo true; exit 9")
    outcome = await working.outcome(raw)
    assert outcome.exit_code == 9
    assert await working.stdout(raw) == [b"true"]
    assert_verified(outcome)
