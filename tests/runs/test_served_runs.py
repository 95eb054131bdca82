"""Runs whose OpenCode is driven through its server, and pods that rest: the real OpenCode with the scripted model."""

import asyncio
import json
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from agent_runs.client.outcome import cancel, outcome_at_close
from agent_runs.client.tell import tell
from agent_runs.contracts.outcome import Outcome
from agent_runs.job.resting_pods import TRIES
from agent_runs.kube.objects import Job
from agent_runs.kube.ownership import RESTS_SINCE
from agent_runs.pod.sidecar.tokens import KEY_PLACEHOLDER
from tests.pod.driving import bash, script
from tests.pod.paperclip import serving
from tests.runs.claiming import next_run_in_its_own_pod, one_claim_wins
from tests.runs.real_opencode import later, open_real_system, opencode_agent, playing, real_system
from tests.runs.system import System
from tests.runs.test_api_proxy import ASK, PYTHON, until_token_rotated
from tests.support.ends import assert_verified, assert_whole

pytestmark = pytest.mark.slow
COMMON = ("step_start", "tool_use", "text", "step_finish", "error")
"""Types of events that `opencode run` writes, too."""


SAYS_ITS_RUN = (bash("echo $PAPERCLIP_RUN_ID"), {"text": "Two."})
WAITS = (bash("echo began; sleep 600"), {"text": "Never."})


@pytest.fixture(scope="module")
async def system(temporal: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    async with real_system(temporal, tmp_path_factory.mktemp("served")) as opened:
        yield opened


@pytest.fixture(params=[1, 2], ids=["OpenCode 1", "OpenCode 2"])
def opencode(request: pytest.FixtureRequest) -> int:
    """The version, its first number."""
    version: int = request.param
    return version


async def served(system: System, *steps: dict[str, Any], opencode: int = 1, **config: Any) -> dict[str, Any]:
    """An agent that only the server drives, with these steps."""
    return playing(await opencode_agent(system, "script", opencode, transport="serve", **config), *steps)


async def rested(system: System, **config: Any) -> tuple[dict[str, Any], Outcome, Job]:
    """An agent after its first run, whose pod rests."""
    raw = await served(system, {"text": "One."}, **{"keepWarmSec": 120, **config})
    outcome = await system.outcome(raw)
    assert_whole(outcome, "One.")
    (job,) = await system.jobs(raw)
    assert RESTS_SINCE in job.metadata.annotations
    return raw, outcome, job


def replace_program(raw: dict[str, Any], before: str) -> None:
    """Let the agent's OpenCode do this in a shell before it starts."""
    program = Path(raw["config"]["env"]["PATH"].partition(":")[0]) / "opencode"
    real = program.resolve()
    program.unlink()
    program.write_text(f'#!/bin/sh\n{before}\nexec {real} "$@"\n')
    program.chmod(0o755)


async def until(true: Callable[[], bool]) -> None:
    """Returns once it is true of processes, which nobody reports."""
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110 - as the docstring says
            await asyncio.sleep(0.05)


def processes(*words: bytes, variable: bytes = b"") -> list[int]:
    """Processes with these words in their command line and this in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line, environment = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
        except OSError:
            continue
        if all(word in line for word in words) and variable in environment:
            found.append(int(folder.name))
    return found


def server_of(raw: dict[str, Any]) -> list[int]:
    """The processes of the OpenCode server that was started for this run."""
    return processes(b"opencode\0serve", variable=b"PAPERCLIP_RUN_ID=" + raw["runId"].encode())


def helpers_of_the_sidecar() -> list[int]:
    """The processes that the only sidecar of this moment has started: API proxy and driver."""
    sidecars = processes(b"sidecar.pyz\0run")
    parents = {pid: int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1]) for pid in sidecars}
    return [pid for pid, parent in parents.items() if parent in sidecars]


def status_without_a_run(server: int) -> int:
    """What the API proxy of a resting pod answers to what a process of the agent could ask."""
    variables = Path(f"/proc/{server}/environ").read_bytes().split(b"\0")
    (address,) = [
        each.partition(b"http://")[2].decode() for each in variables if each.startswith(b"PAPERCLIP_API_URL=")
    ]
    connection = HTTPConnection(address, timeout=10)
    connection.request("GET", "/api/issues/1", headers={"Authorization": f"Bearer {KEY_PLACEHOLDER}"})
    return connection.getresponse().status


async def until_a_tool_runs(system: System, raw: dict[str, Any]) -> None:
    """Returns once the agent's command has written something: it runs."""
    await until(lambda: bool(processes(b"sleep\x00600", variable=b"PAPERCLIP_RUN_ID=")))
    await system.until_tools_began(raw)


async def test_a_served_run_has_the_lines_of_the_command_line_and_leaves_nothing(system: System) -> None:
    steps = (bash("echo works"), {"text": "Done."})
    seen = {}
    for transport in ("serve", "run"):
        raw = playing(await opencode_agent(system, "script", transport=transport), *steps)
        outcome = await system.outcome(raw)
        assert_whole(outcome, "Done.")
        seen[transport] = (
            [event["type"] for event in await system.events(raw) if event["type"] in COMMON],
            outcome.usage,
        )
        assert await system.jobs(raw) == []
    assert seen["serve"] == seen["run"]
    assert seen["serve"][0].count("step_finish") == 2


@contextmanager
def package_registry() -> Iterator[tuple[str, list[str]]]:
    """The address of a registry of npm that has nothing, and what it was asked for."""
    asked: list[str] = []

    class Registry(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("transport", ["run", "serve"])
async def test_opencode_installs_no_packages_while_it_works(system: System, transport: str) -> None:
    with package_registry() as (address, asked):
        raw = playing(await opencode_agent(system, "script", transport=transport), bash("sleep 2"), {"text": "Done."})
        raw["config"]["env"]["npm_config_registry"] = address
        assert_whole(await system.outcome(raw), "Done.")
    assert asked == []


async def test_after_a_server_that_does_not_start_the_next_attempt_uses_the_command_line(system: System) -> None:
    raw = playing(await opencode_agent(system, "script"), {"text": "Done."})
    replace_program(raw, '[ "$1" != serve ] || exit 3')
    outcome = await system.outcome(raw)
    assert_whole(outcome, "Done.")
    assert [attempt.failure_code for attempt in outcome.attempts] == ["opencode_server_unusable", None]


@pytest.mark.parametrize("claimed", [False, True], ids=["own pod", "claimed pod"])
async def test_a_cancel_ends_the_turn_its_tool_and_the_pod(system: System, opencode: int, claimed: bool) -> None:
    if claimed:
        first, outcome, _ = await rested(system, opencode=opencode)
        raw = later(first, outcome, *WAITS)
    else:
        raw = await served(system, *WAITS, keepWarmSec=120, opencode=opencode)
    ticket = await system.start(raw)
    await until_a_tool_runs(system, raw)
    await cancel(ticket.handle(system.temporal), "changed my mind")
    ended = await outcome_at_close(ticket.handle(system.temporal))
    assert (ended.error_code, ended.stop and ended.stop.agent_stopped) == ("cancelled", True)
    assert_verified(ended)
    assert [event["part"]["state"]["status"] for event in await system.events(raw) if event["type"] == "tool_use"]
    assert (await system.jobs(raw), await system.pods(raw)) == ([], [])
    assert processes(b"sleep\x00600", variable=raw["runId"].encode()) == []


@pytest.mark.parametrize("claimed", [False, True], ids=["own pod", "claimed pod"])
async def test_a_message_reaches_the_agent_and_is_in_the_transcript_alone(
    system: System, opencode: int, claimed: bool
) -> None:
    steps = {**bash("sleep 5")}, {"text": "Done."}
    if claimed:
        first, outcome, _ = await rested(system, opencode=opencode)
        raw = later(first, outcome, *steps)
    else:
        raw = await served(system, *steps, opencode=opencode)
    ticket = await system.start(raw)
    handle = ticket.handle(system.temporal)
    await system.until_tools_began(raw)
    key = system.wake(raw).start.key
    text = f"It is a stork. {script({'text': 'I have read of the heron.'})}"
    answer = await tell(handle, key, system.sealer, text, "ada")
    outcome = await outcome_at_close(handle)
    assert answer.attempt == 1
    assert (outcome.failure, str(outcome.summary).endswith("I have read of the heron.")) == (None, True)
    assert_verified(outcome)
    (line,) = [event["message"] for event in await system.events(raw) if event["type"] == "user_message"]
    assert (line["by"], line["text"]) == ("ada", text)
    assert "ada sent the agent a message in attempt 1" in outcome.result_json["notes"]
    history = b"".join([event.SerializeToString() for event in (await handle.fetch_history()).events])
    assert (b"heron" in history, b"stork" in history) == (True, False)  # the answer is, and the message is not


async def test_a_message_is_delivered_once_although_its_worker_is_killed(temporal: Client, tmp_path: Path) -> None:
    async with open_real_system(temporal, tmp_path) as system:
        may_end = tmp_path / "may-end"
        raw = await served(system, bash(f"until [ -e {may_end} ]; do sleep 0.2; done"), {"text": "Done."})
        ticket = await system.start(raw)
        handle = ticket.handle(system.temporal)
        async with system.worker_process() as worker:
            await system.until_tools_began(raw)
            telling = asyncio.create_task(tell(handle, system.wake(raw).start.key, system.sealer, "a stork", "ada"))
            async for event in handle.fetch_history_events(wait_new_event=True):
                if event.activity_task_scheduled_event_attributes.activity_type.name == "tell_agent":
                    break
            worker.kill()
        async with system.worker():
            await telling
            may_end.touch()
            outcome = await outcome_at_close(handle)
        events = await system.events(raw)
    assert outcome.failure is None
    assert_verified(outcome)
    assert [event["message"]["text"] for event in events if event["type"] == "user_message"] == ["a stork"]


async def test_a_message_waits_for_the_end_of_opencodes_command_line_though_its_worker_is_killed(
    temporal: Client, tmp_path: Path
) -> None:
    async with open_real_system(temporal, tmp_path) as system:
        may_end = tmp_path / "may-end"
        agent = await opencode_agent(system, "script", transport="run")
        raw = playing(agent, bash(f"until [ -e {may_end} ]; do sleep 0.2; done"), {"text": "Done."})
        ticket = await system.start(raw)
        handle = ticket.handle(system.temporal)
        async with system.worker_process() as worker:
            await system.until_stored(raw)
            text = f"Go on. {script({'text': 'I have read of the heron.'})}"
            answer = await tell(handle, system.wake(raw).start.key, system.sealer, text, "ada")
            worker.kill()
        may_end.touch()
        async with system.worker():
            outcome = await outcome_at_close(handle)
        events = [event for attempt in (1, 2) for event in await system.events(raw, attempt)]
    assert (answer.queued, answer.attempt) == (True, 1)
    assert (outcome.failure, outcome.summary) == (None, "I have read of the heron.")
    assert_verified(outcome)
    assert [each.failure_code for each in outcome.attempts] == [None, None]
    assert [event["part"]["text"] for event in events if event["type"] == "text"] == [
        "Done.",
        "I have read of the heron.",
    ]
    assert len({event["sessionID"] for event in events}) == 1
    assert "ada sent the agent a message, the prompt of attempt 2" in outcome.warnings


@pytest.mark.parametrize("claimed", [False, True], ids=["own pod", "claimed pod"])
async def test_a_server_that_is_killed_ends_the_run_by_name(system: System, opencode: int, claimed: bool) -> None:
    if claimed:
        first, outcome, _ = await rested(system, opencode=opencode)
        raw = later(first, outcome, *WAITS)
    else:
        first = raw = await served(system, *WAITS, opencode=opencode)
    ticket = await system.start(raw)
    await until_a_tool_runs(system, raw)
    for pid in server_of(first):
        os.kill(pid, signal.SIGKILL)
    ended = await outcome_at_close(ticket.handle(system.temporal))
    assert ended.failure is not None
    assert ended.failure.code == "opencode_crashed"
    assert (await system.jobs(raw), await system.pods(raw)) == ([], [])


async def test_a_server_that_ignores_sigterm_holds_no_run_up(system: System, opencode: int) -> None:
    raw = await served(system, {"text": "Done."}, keepWarmSec=0, opencode=opencode)
    replace_program(raw, "trap '' TERM")
    async with asyncio.timeout(60):
        assert_whole(await system.outcome(raw), "Done.")


async def test_a_killed_driver_is_replaced_and_no_line_is_lost_or_doubled(
    system: System, opencode: int, tmp_path: Path
) -> None:
    gates = [tmp_path / f"go-{number}" for number in range(4)]
    steps = [bash(f"until [ -e {gate} ]; do sleep 0.05; done; echo {gate.name}") for gate in gates]
    raw = await served(system, *steps, {"text": "Done."}, opencode=opencode)
    ticket = await system.start(raw)
    for number, gate in enumerate(gates):
        await system.until_tools_began(raw, number + 1)
        for pid in helpers_of_the_sidecar():
            os.kill(pid, signal.SIGKILL)
        gate.touch()
    outcome = await outcome_at_close(ticket.handle(system.temporal))
    assert_whole(outcome, "Done.")
    seen = [event for event in await system.events(raw) if event["type"] in COMMON]
    outputs = [event["part"]["state"]["output"].strip() for event in seen if event["type"] == "tool_use"]
    assert outputs == [gate.name for gate in gates]
    assert len({event["part"]["id"] for event in seen}) == len(seen)


async def test_the_next_run_of_the_task_gets_the_pod_that_rests(system: System, opencode: int) -> None:
    first, one, resting = await rested(system, opencode=opencode)
    second = later(first, one, *SAYS_ITS_RUN)
    two = await system.outcome(second)
    assert_whole(two, "Two.")
    assert two.session_id == one.session_id
    assert two.attempts[0].job_name == resting.metadata.name
    assert [job.metadata.uid for job in await system.jobs(first)] == [resting.metadata.uid]
    (command,) = [event for event in await system.events(second) if event["type"] == "tool_use"]
    assert command["part"]["state"]["output"].strip() == second["runId"]
    assert {event["sessionID"] for event in await system.events(second)} == {two.session_id}
    assert two.result_json.get("notes") == one.result_json.get("notes")
    (pod,) = await system.pods(second)
    turn = system.embedded.state_dir / "pods" / pod.metadata.uid / "volumes/control/turn-2/turn.json"
    # the journal of OpenCode 1 is read from where the first run has read it
    assert opencode != 1 or json.loads(turn.read_text())["read_to"] > 0


@pytest.mark.parametrize("left", ["setsid {}", "env -i setsid {}", "(env -i setsid {} &)"])
async def test_what_a_run_leaves_running_ends_when_its_pod_rests(system: System, opencode: int, left: str) -> None:
    seconds = f"601.{os.getpid()}"  # other checkouts' tests have theirs
    command = f"{left.format(f'sleep {seconds}')} >/dev/null 2>&1 & echo left"
    raw = await served(system, bash(command), {"text": "One."}, keepWarmSec=120, opencode=opencode)
    assert_whole(await system.outcome(raw), "One.")
    await until(lambda: processes(f"sleep\0{seconds}".encode()) == [])
    assert server_of(raw)


async def test_a_configuration_that_a_run_leaves_in_its_home_is_not_there_for_the_next_one(system: System) -> None:
    leaves = bash("mkdir -p ~/.opencode && echo '{}' > ~/.opencode/opencode.json")
    first = await served(system, leaves, {"text": "One."}, keepWarmSec=120)
    one = await system.outcome(first)
    assert_whole(one, "One.")
    second = later(first, one, bash("while [ -e ~/.opencode ]; do sleep 0.1; done; ls -A ~"), {"text": "Two."})
    two = await system.outcome(second)
    assert_whole(two, "Two.")
    assert two.attempts[0].job_name == one.attempts[0].job_name
    (command,) = [event for event in await system.events(second) if event["type"] == "tool_use"]
    assert ".opencode-unused" in command["part"]["state"]["output"].split()


async def until_gone(system: System, raw: dict[str, Any]) -> None:
    """Returns once the pod has ended by itself, and its Job with it."""
    async with asyncio.timeout(60):
        while await system.jobs(raw):  # noqa: ASYNC110 - this test watches no Jobs
            await asyncio.sleep(0.1)


async def test_a_pod_that_nobody_claims_ends_by_itself(system: System) -> None:
    raw, *_ = await rested(system, keepWarmSec=1)
    await until_gone(system, raw)
    assert server_of(raw) == []


async def test_a_server_that_uses_more_memory_than_its_pod_requested_does_not_rest(system: System) -> None:
    raw = await served(system, {"text": "One."}, keepWarmSec=120, resources={"requests": {"memory": "100Mi"}})
    first = await system.outcome(raw)
    assert_whole(first, "One.")
    await until_gone(system, raw)
    second = await system.outcome(later(raw, first, {"text": "Two."}))
    assert_whole(second, "Two.")
    assert [attempt.failure_code for attempt in second.attempts] == [None]
    assert second.attempts[0].job_name != first.attempts[0].job_name


async def test_a_pod_of_another_configuration_is_not_claimed(system: System) -> None:
    first, one, resting = await rested(system)
    second = later(first, one, {"text": "Two."})
    second["config"] = {**second["config"], "env": {**second["config"]["env"], "MODE": "another"}}
    two = await system.outcome(second)
    assert_whole(two, "Two.")
    assert two.attempts[0].job_name != resting.metadata.name
    assert resting.metadata.uid not in [job.metadata.uid for job in await system.jobs(first)]
    assert "previous runs" not in str(two.result_json.get("notes"))


async def test_of_several_claims_one_wins_and_a_repeated_one_is_answered_as_before(system: System) -> None:
    _, _, job = await rested(system)
    await one_claim_wins(system, job)


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hangs"])
async def test_a_resting_server_that_is_gone_costs_the_next_run_only_a_start(
    system: System, sent: signal.Signals
) -> None:
    first, one, resting = await rested(system, graceSec=1)
    for pid in server_of(first):
        os.kill(pid, sent)
    await next_run_in_its_own_pod(system, first, one, resting)


async def test_a_resting_pod_that_is_evicted_costs_the_next_run_only_a_start(system: System) -> None:
    first, one, resting = await rested(system)
    (pod,) = await system.pods(first)
    await system.embedded.faults.evict(pod.metadata.name)
    await next_run_in_its_own_pod(system, first, one, resting)


async def test_a_resting_pod_that_cannot_be_asked_costs_the_next_run_only_a_start_and_a_note(system: System) -> None:
    first, one, resting = await rested(system)
    system.embedded.faults.http(path="/exec.*command=claim", status=404, times=TRIES)
    two = await next_run_in_its_own_pod(system, first, one, resting)
    assert f"the pod of Job {resting.metadata.name} rested, and was not used" in str(two.result_json.get("notes"))


async def test_a_sidecar_that_is_killed_in_a_claimed_pod_costs_one_attempt(
    system: System, opencode: int, tmp_path: Path
) -> None:
    first, one, resting = await rested(system, opencode=opencode)
    gate = tmp_path / "go"
    raw = later(first, one, bash(f"until [ -e {gate} ]; do sleep 0.05; done; echo sleep 600"), {"text": "Two."})
    ticket = await system.start(raw)
    await system.until_tools_began(raw)
    (pod,) = await system.pods(raw)
    await system.embedded.faults.kill_container(pod.metadata.name, "sidecar")
    gate.touch()
    ended = await outcome_at_close(ticket.handle(system.temporal))
    assert [attempt.failure_code for attempt in ended.attempts] == ["k8s_pod_lost", None]
    assert ended.attempts[0].job_name == resting.metadata.name
    assert ended.failure is None


async def test_the_token_is_always_that_of_the_run(system: System, opencode: int, tmp_path: Path) -> None:
    ask, gate = tmp_path / "ask.py", tmp_path / "go"
    ask.write_text(f"{ASK}\nprint(ask('/api/issues/1'))\n")
    asks, waits = bash(f"{PYTHON} {ask}"), bash(f"until [ -e {gate} ]; do sleep 0.05; done; {PYTHON} {ask}")
    with serving() as paperclip:
        first = await served(
            system, asks, {"text": "One."}, keepWarmSec=120, paperclipApiUrl=paperclip.url, opencode=opencode
        )
        first["authToken"], paperclip.owner = "token-a", ("token-a", first["runId"])
        one = await system.outcome(first)
        assert_whole(one, "One.")
        (resting,) = await system.jobs(first)
        (server,) = server_of(first)
        assert await asyncio.to_thread(status_without_a_run, server) == 503
        second = later(first, one, asks, waits, {"text": "Two."})
        second["authToken"], paperclip.owner = "token-b", ("token-b", second["runId"])
        ticket = await system.start(second)
        await system.until_tools_began(second, 2)
        third = {**later(second, one, {"text": "Three."}), "authToken": "token-c"}
        paperclip.owner = ("token-c", third["runId"])
        assert (await system.start(third)).kind == "joined"
        await until_token_rotated(ticket, system)
        gate.touch()
        two = await outcome_at_close(ticket.handle(system.temporal))
    assert_whole(two, "Two.")
    assert two.attempts[0].job_name == resting.metadata.name
    sent = [(each.headers["Authorization"], each.headers["X-Paperclip-Run-Id"]) for each in paperclip.requests]
    assert sent == [
        ("Bearer token-a", first["runId"]),
        ("Bearer token-b", second["runId"]),
        ("Bearer token-c", third["runId"]),
    ]


async def test_fifty_wakes_of_one_pod_keep_their_lines_apart(system: System) -> None:
    raw, outcome, resting = await rested(system)
    for number in range(50):
        raw = later(raw, outcome, bash(f"echo number {number}"), {"text": f"Wake {number}."})
        outcome = await system.outcome(raw)
        assert_whole(outcome, f"Wake {number}.")
        assert outcome.attempts[0].job_name == resting.metadata.name
        (command,) = [event for event in await system.events(raw) if event["type"] == "tool_use"]
        assert command["part"]["state"]["output"].strip() == f"number {number}"


async def test_a_pod_whose_output_was_emptied_does_not_rest_and_holds_no_run_up(system: System) -> None:
    emptied = bash(": > /agent-run/output/stderr")
    raw = await served(system, emptied, {"text": "Done."}, keepWarmSec=120)
    async with asyncio.timeout(60):
        outcome = await system.outcome(raw)
    assert outcome.summary == "Done."
    assert outcome.receipt is not None
    assert outcome.receipt.state == "differs"
    assert await system.jobs(raw) == []
