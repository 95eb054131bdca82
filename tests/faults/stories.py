"""The rows of the table: what is done to a run, and what has to come of it."""

import asyncio
import signal
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

from client.attach import Ticket
from client.outcome import cancel, outcome_of
from contracts.outcome import Outcome
from contracts.talk import Cancelled
from local.cluster.kinds import JOBS, PODS, Object
from tests.faults.facts import Expected
from tests.faults.scene import LOOK, POLITE, Scene, processes_of

Story = Callable[[Scene], Awaitable[Outcome]]

LOST: Final = ("k8s_pod_lost", None)
"""The first attempt lost its pod, the second one was whole."""


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        name: of its test and its result.
        fault: the group it belongs to.
        did: what is done, for the reader of the table.
        server: needs a Temporal server that it may stop.
    """

    name: str
    fault: str
    did: str
    story: Story
    expected: Expected
    quick: bool = False
    server: bool = False


def row(
    fault: str,
    name: str,
    did: str,
    story: Story,
    code: str | None = None,
    attempts: tuple[str | None, ...] | None = None,
    *,
    bound: int = 150,
    quick: bool = False,
    server: bool = False,
) -> Row:
    expected = Expected(code, (code,) if attempts is None else attempts, timedelta(seconds=bound))
    return Row(name, fault, did, story, expected, quick, server)


# ---------------------------------------------------------------- workers


async def killed_at(step: str, moment: str, scene: Scene) -> Outcome:
    scene.agent(waits=False)
    ticket = await scene.start()
    doomed = await scene.worker(step, moment)
    assert await doomed.end() == -signal.SIGKILL
    await scene.worker()
    return await scene.outcome(ticket)


async def killed_while_cancelling(moment: str, scene: Scene) -> Outcome:
    scene.agent(POLITE)
    ticket = await scene.start()
    doomed = await scene.worker("stop_agent", moment)
    await scene.written()
    cancelling = asyncio.create_task(cancel(ticket.handle(scene.system.temporal), "wrong branch"))
    assert await doomed.end() == -signal.SIGKILL
    await scene.worker()
    answer = await cancelling
    assert (answer.outcome, answer.stop.agent_stopped) == ("cancelled", True)
    return await scene.outcome(ticket)


async def killed_while_looking(moment: str, scene: Scene) -> Outcome:
    scene.agent(silenceTimeoutSec=2, firstOutputTimeoutSec=1)
    ticket = await scene.start()
    doomed = await scene.worker("examine_silence", moment)
    assert await doomed.end() == -signal.SIGKILL
    await scene.worker()
    return await scene.outcome(ticket)


async def gone_in_the_middle(by: signal.Signals, scene: Scene) -> Outcome:
    scene.agent()
    ticket = await scene.start()
    first = await scene.worker()
    await scene.written()
    first.send(by)
    assert await first.end() == (0 if by == signal.SIGTERM else -signal.SIGKILL)
    scene.open_gate()
    await scene.worker()
    return await scene.outcome(ticket)


STEPS: Final = (
    "introspect_pod",
    "bundle_prompt",
    "reap_leftovers",
    "create_job",
    "await_schedule",
    "stream_logs",
    "parse_transcript",
    "finish",
)
MOMENTS: Final = {"before": "has begun and done nothing", "after": "has done its work and reported nothing"}


def worker_rows() -> list[Row]:
    fault = "worker"
    rows = [
        row(fault, f"sigkill-{moment}-{step}", f"SIGKILL when `{step}` {told}", partial(killed_at, step, moment))
        for step in STEPS
        for moment, told in MOMENTS.items()
    ]
    for moment, told in MOMENTS.items():
        rows += [
            row(
                fault,
                f"sigkill-{moment}-stop_agent",
                f"SIGKILL when `stop_agent` of a cancel {told}",
                partial(killed_while_cancelling, moment),
                "cancelled",
            ),
            row(
                fault,
                f"sigkill-{moment}-examine_silence",
                f"SIGKILL when `examine_silence` {told}",
                partial(killed_while_looking, moment),
                "agent_silent",
            ),
        ]
    middle = "while the agent speaks; another worker goes on"
    return [
        *rows,
        row(fault, "sigkill-in-the-stream", f"SIGKILL {middle}", partial(gone_in_the_middle, signal.SIGKILL)),
        row(fault, "sigterm-roll", f"SIGTERM {middle}", partial(gone_in_the_middle, signal.SIGTERM), quick=True),
    ]


# ---------------------------------------------------------------- Temporal


async def temporal_away(seconds: float, scene: Scene) -> Outcome:
    scene.agent()
    ticket = await scene.start()
    await scene.worker()
    await scene.written()
    assert scene.server is not None
    await scene.server.away(seconds, meanwhile=scene.open_gate)
    return await scene.outcome(ticket)


def temporal_rows() -> list[Row]:
    did = "the server is stopped while the agent speaks, and is back after {} s"
    return [
        row(
            "Temporal",
            f"temporal-away-{seconds}s",
            did.format(seconds),
            partial(temporal_away, seconds),
            server=True,
            bound=150 + seconds,
            quick=seconds == 5,
        )
        for seconds in (5, 60)
    ]


# ---------------------------------------------------------------- the API server


async def api_answers(answer: dict[str, float | None], scene: Scene) -> Outcome:
    """On each kind of object by itself: steps that go on side by side share no luck."""
    scene.agent(waits=False)
    meant = [scene.system.embedded.faults.http(path=f"/{kind}", **answer) for kind in ("secrets", "jobs", "pods")]
    ticket = await scene.start()
    await scene.worker()
    outcome = await scene.outcome(ticket)
    assert all(fault.hits >= (fault.times or 1) for fault in meant)
    return outcome


async def api_away_while_speaking(seconds: float, scene: Scene) -> Outcome:
    scene.agent()
    ticket = await scene.start()
    await scene.worker()
    await scene.written()
    scene.open_gate()
    await scene.server_away(seconds)
    return await scene.outcome(ticket)


async def api_away_before_the_job(seconds: float, scene: Scene) -> Outcome:
    scene.agent(waits=False)
    scene.system.embedded.faults.http(method="POST", path="/jobs$", status=503, times=None)
    ticket = await scene.start()
    await scene.worker()
    await scene.step(ticket, "create_job", tries=2)
    await scene.server_away(seconds)
    return await scene.outcome(ticket)


async def creation_unanswered(scene: Scene) -> Outcome:
    scene.agent(waits=False)
    lost = scene.system.embedded.faults.http(method="POST", path="/jobs$", cut_after=0)
    ticket = await scene.start()
    await scene.worker()
    outcome = await scene.outcome(ticket)
    assert lost.hits == 1
    return outcome


def api_rows() -> list[Row]:
    fault = "API server"
    return [
        row(fault, "api-429", "3 requests about Secrets, Jobs and pods each are answered 429, Retry-After 1 s",
            partial(api_answers, {"status": 429, "retry_after": 1, "times": 3}), bound=300),
        row(fault, "api-500", "3 requests about Secrets, Jobs and pods each are answered 500",
            partial(api_answers, {"status": 500, "times": 3}), bound=300),
        row(fault, "api-slow", "each answer takes 3 s", partial(api_answers, {"delay": 3.0, "times": None}), bound=300),
        row(fault, "api-away-60s", "away for 60 s while the agent speaks",
            partial(api_away_while_speaking, 60), bound=300),
        row(fault, "api-away-60s-before-the-job", "away for 60 s when the Job is to be created",
            partial(api_away_before_the_job, 60), bound=300),
        row(fault, "creation-unanswered", "the Job is created and the answer is lost", creation_unanswered, quick=True),
    ]  # fmt: skip


# ---------------------------------------------------------------- the pod and its node


async def pod_meets(accident: Callable[[Scene, Object], Awaitable[None]], scene: Scene) -> Outcome:
    """Something happens to the pod while the agent speaks; another attempt, if there is one, is not held up."""
    scene.agent()
    ticket = await scene.start()
    await scene.worker()
    await scene.written()
    pod = await scene.pod()
    await accident(scene, pod)
    await until(lambda: not processes_of(scene.agent_id))
    scene.open_gate()
    return await scene.outcome(ticket)


async def evicted(scene: Scene, pod: Object) -> None:
    await scene.system.embedded.faults.evict(pod["metadata"]["name"])


async def deleted(scene: Scene, pod: Object) -> None:
    scene.system.embedded.faults.delete_pod(pod["metadata"]["name"], grace=0)


async def node_lost(scene: Scene, _pod: Object) -> None:
    await scene.system.embedded.faults.lose_node(forget_after=3)
    await scene.vanished(PODS)
    await scene.system.embedded.faults.recover_node()


async def out_of_memory(scene: Scene, pod: Object) -> None:
    scene.oom_kill(pod)


async def job_deleted(scene: Scene, _pod: Object) -> None:
    job = await scene.system.kubernetes.read_job("default", scene.left(JOBS)[0])
    assert job is not None
    await scene.system.kubernetes.delete_job("default", job.metadata.name, job.metadata.uid)


async def removed_before(step: str, moment: str, scene: Scene) -> Outcome:
    """The worker goes, the agent ends, the Job's TTL takes it; then another worker looks."""
    scene.agent(waits=False)
    ticket = await scene.start()
    doomed = await scene.worker(step, moment)
    assert await doomed.end() == -signal.SIGKILL
    scene.shorten_ttl()
    await scene.vanished(JOBS)
    await scene.worker()
    return await scene.outcome(ticket)


def cluster_rows() -> list[Row]:
    fault, gone = "cluster", "k8s_job_deleted_externally"
    return [
        row(fault, "pod-evicted", "the pod is evicted", partial(pod_meets, evicted), None, LOST),
        row(fault, "pod-deleted", "somebody deletes the pod", partial(pod_meets, deleted), None, LOST),
        row(fault, "job-deleted", "somebody deletes the Job", partial(pod_meets, job_deleted), gone),
        row(fault, "node-lost", "the node is lost, its pod forgotten 3 s later",
            partial(pod_meets, node_lost), None, LOST),
        row(fault, "oom-killed", "the container is OOMKilled",
            partial(pod_meets, out_of_memory), "oom_killed", quick=True),
        row(fault, "ttl-before-the-log", "worker killed, agent done, Job removed by its TTL before its log was read",
            partial(removed_before, "stream_logs", "before"), gone),
        row(fault, "ttl-before-the-creation-is-repeated",
            "worker killed when it had created the Job, agent done, Job removed by its TTL, creation repeated",
            partial(removed_before, "create_job", "after"), gone),
    ]  # fmt: skip


# ---------------------------------------------------------------- callers


async def duplicate_wake(scene: Scene) -> Outcome:
    scene.agent()
    request = scene.request().model_copy(update={"linger_sec": 0})
    tickets = await asyncio.gather(*(scene.attach(request) for _ in range(20)))
    assert sorted(ticket.kind for ticket in tickets) == ["joined"] * 19 + ["started"]
    await scene.worker()
    await scene.written()
    tickets.append(await scene.attach(request))
    scene.open_gate()
    outcomes = await asyncio.gather(*(scene.outcome(ticket) for ticket in tickets))
    assert all(outcome == outcomes[0] for outcome in outcomes)
    tickets.append(await scene.attach(request))
    assert (tickets[-1].kind, tickets[-1].closed) == ("joined", True)
    return await scene.outcome(tickets[-1])


async def next_wake(scene: Scene) -> Outcome:
    """The same task again: it joins, gets the outcome of the one run, and the run need not linger any longer."""
    again = scene.request().model_copy(update={"run_id": f"{scene.raw['runId']}-again"})
    ticket = await scene.attach(again)
    assert (ticket.kind, ticket.run_id) == ("joined", scene.raw["runId"])
    scene.open_gate()
    outcome = await outcome_of(ticket.handle(scene.system.temporal), collect=True)
    assert await scene.outcome(ticket) == outcome
    return outcome


async def caller_killed(when: str, scene: Scene) -> Outcome:
    scene.agent()
    if when == "before":
        caller = await scene.caller()
    else:
        await scene.worker()
        caller = await scene.caller(collects=when == "during")
        await scene.written()
    if when == "after":
        scene.open_gate()
        await scene.there("outcome")
    caller.send(signal.SIGKILL)
    assert await caller.end() == -signal.SIGKILL
    if when == "before":
        await scene.worker()
    return await next_wake(scene)


def caller_rows() -> list[Row]:
    fault, then = "caller", "the next wake of the task gets the outcome"
    told = {
        "before": "killed with its ticket, before any worker has seen the run",
        "during": "killed while the agent speaks",
        "after": "killed when the run has ended and its outcome is not collected",
    }
    return [
        row(fault, "duplicate-wake", "20 wakes with one run id at once, one later, one after the end", duplicate_wake,
            quick=True),
        *(row(fault, f"caller-killed-{when}", f"{did}; {then}", partial(caller_killed, when))
          for when, did in told.items()),
    ]  # fmt: skip


# ---------------------------------------------------------------- disks


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Another program holds the file."""
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        other.close()


async def store_away(seconds: float, scene: Scene) -> Outcome:
    scene.agent()
    ticket = await scene.start()
    await scene.worker()
    await scene.written()
    with locked(scene.folder / "transcripts.db"):
        scene.open_gate()
        await asyncio.sleep(seconds)
    return await scene.outcome(ticket)


async def store_full(scene: Scene) -> Outcome:
    scene.agent(f"say 0 {{half}}; gate; say {{half}} {{lines}} ' {'x' * 200}'; finish", lines=2000)
    ticket = await scene.start()
    await scene.worker()
    await scene.written()
    (scene.folder / "full").touch()
    scene.open_gate()
    found = await scene.step(ticket, "stream_logs", tries=3)
    assert found.last_failure.application_failure_info.type == "transcripts_unavailable", found.last_failure
    (scene.folder / "full").unlink()
    return await scene.outcome(ticket)


SMALL_DISK: Final = """#!/bin/sh
case $1 in
*/runner*)
    exec unshare -Urm /bin/sh -c 'mount -t tmpfs -o size=256k tmpfs /agent-run/output && exec /bin/sh "$@"' sh "$@"
    ;;
esac
exec /bin/sh "$@"
"""
"""In place of `sh` in the pod: the runner finds its output folder on a disk of 256 KiB."""


async def agent_disk_full(scene: Scene) -> Outcome:
    raw = scene.agent(
        f"finish | head -n 1; say 0 {{lines}} ' {'x' * 200}' && finish && exit\n"
        "echo 'ENOSPC: no space left on device, write' >&2; exit 1",
        lines=4000,
    )
    shell = Path(raw["config"]["env"]["PATH"].partition(":")[0]) / "sh"
    shell.write_text(SMALL_DISK)
    shell.chmod(0o755)
    ticket = await scene.start()
    await scene.worker()
    return await scene.outcome(ticket)


def disk_rows() -> list[Row]:
    return [
        row("disks", "store-away-30s", "the transcript store is locked for 30 s", partial(store_away, 30)),
        row("disks", "store-full", "the transcript store's disk is full for a while", store_full),
        row("disks", "agent-disk-full", "the disk of the agent's output is full; it ends with ENOSPC", agent_disk_full,
            "output_lost"),
    ]  # fmt: skip


# ---------------------------------------------------------------- cancels


async def cancel_queued(scene: Scene) -> Outcome:
    """Before any worker has seen the run."""
    scene.agent()
    ticket = await scene.start()
    cancelling = asyncio.create_task(cancel(ticket.handle(scene.system.temporal), "wrong branch"))
    await scene.worker()
    return await stopped(scene, ticket, cancelling, agent_started=False)


async def cancel_bundling(scene: Scene) -> Outcome:
    """While the API server takes its time over the prompt."""
    scene.agent()
    slow = scene.system.embedded.faults.http(method="POST", path="/secrets$", delay=3.0)
    ticket = await scene.start()
    await scene.worker()
    await scene.step(ticket, "bundle_prompt")
    await until(lambda: slow.hits == 1)
    cancelling = asyncio.create_task(cancel(ticket.handle(scene.system.temporal), "wrong branch"))
    return await stopped(scene, ticket, cancelling, agent_started=False)


async def cancel_creating(scene: Scene) -> Outcome:
    """While the API server takes its time over the Job."""
    scene.agent()
    slow = scene.system.embedded.faults.http(method="POST", path="/jobs$", delay=3.0)
    ticket = await scene.start()
    await scene.worker()
    await until(lambda: slow.hits == 1)
    cancelling = asyncio.create_task(cancel(ticket.handle(scene.system.temporal), "wrong branch"))
    return await stopped(scene, ticket, cancelling)


async def cancel_created(scene: Scene) -> Outcome:
    """The agent is at work, and nobody knows of its Job yet: the answer to its creation was lost."""
    scene.agent(POLITE)
    faults = scene.system.embedded.faults
    faults.http(method="POST", path="/jobs$", cut_after=0)
    slow = faults.http(method="GET", path="/jobs/", delay=3.0)
    ticket = await scene.start()
    await scene.worker()
    await scene.there("starts")
    await until(lambda: slow.hits == 1)
    cancelling = asyncio.create_task(cancel(ticket.handle(scene.system.temporal), "wrong branch"))
    return await stopped(scene, ticket, cancelling, agent_started=True)


async def cancel_pending(scene: Scene) -> Outcome:
    """While no node takes the pod."""
    scene.agent(nodeSelector={"no-such-node": "yes"})
    ticket = await scene.start()
    await scene.worker()
    await scene.pod()
    cancelling = asyncio.create_task(cancel(ticket.handle(scene.system.temporal), "wrong branch"))
    return await stopped(scene, ticket, cancelling, agent_started=False)


async def cancel_running(scene: Scene) -> Outcome:
    """While the agent speaks; by five callers at once."""
    scene.agent(POLITE)
    ticket = await scene.start()
    await scene.worker()
    await scene.written()
    handle = ticket.handle(scene.system.temporal)
    answers = await asyncio.gather(*(cancel(handle, "wrong branch") for _ in range(5)))
    assert all(answer == answers[0] for answer in answers)
    return await stopped(scene, ticket, asyncio.ensure_future(cancel(handle, "again")), agent_started=True)


async def cancel_by_temporal(scene: Scene) -> Outcome:
    """As an operator does it in the Web UI."""
    scene.agent(POLITE)
    ticket = await scene.start()
    await scene.worker()
    await scene.written()
    await ticket.handle(scene.system.temporal).cancel(reason="wrong branch")
    outcome = await scene.outcome(ticket)
    assert outcome.stop is not None
    assert outcome.stop.agent_stopped
    return outcome


async def cancel_finishing(scene: Scene) -> Outcome:
    """While the API server takes its time over the cleanup: the run has succeeded, and stays so."""
    scene.agent(waits=False)
    slow = scene.system.embedded.faults.http(method="DELETE", path="/jobs/", delay=3.0)
    ticket = await scene.start()
    await scene.worker()
    await until(lambda: slow.hits == 1)
    answer = await cancel(ticket.handle(scene.system.temporal), "too late")
    assert answer.outcome == "ended before"
    assert answer.stop.agent_stopped
    return await scene.outcome(ticket)


async def stopped(
    scene: Scene, ticket: Ticket, cancelling: asyncio.Future[Cancelled], *, agent_started: bool | None = None
) -> Outcome:
    """The answer to a cancel is what the outcome says."""
    answer = await cancelling
    outcome = await scene.outcome(ticket)
    assert (answer.outcome, answer.stop) == ("cancelled", outcome.stop)
    assert answer.stop.agent_stopped
    assert agent_started is None or answer.stop.agent_started == agent_started
    return outcome


async def until(condition: Callable[[], bool]) -> None:
    """Faults count what they meet and tell nobody."""
    while not condition():  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(LOOK)


def cancel_rows() -> list[Row]:
    fault = "cancel"
    return [
        row(fault, "cancel-queued", "before any worker has seen the run", cancel_queued, "cancelled"),
        row(fault, "cancel-bundling", "while the prompt is bundled", cancel_bundling, "cancelled"),
        row(fault, "cancel-creating", "while the Job is created", cancel_creating, "cancelled"),
        row(fault, "cancel-created", "while the agent speaks and its creation is not yet known to have succeeded",
            cancel_created, "cancelled"),
        row(fault, "cancel-pending", "while no node takes the pod", cancel_pending, "cancelled"),
        row(fault, "cancel-running", "while the agent speaks, by five callers, and once more after the end",
            cancel_running, "cancelled", quick=True),
        row(fault, "cancel-by-temporal", "while the agent speaks, by Temporal's own cancel", cancel_by_temporal,
            "cancelled"),
        row(fault, "cancel-finishing", "while the Job of a succeeded run is cleaned up", cancel_finishing),
    ]  # fmt: skip


def rows() -> dict[str, Row]:
    """All of them, in the order of the table."""
    every = [
        *worker_rows(),
        *temporal_rows(),
        *api_rows(),
        *cluster_rows(),
        *caller_rows(),
        *disk_rows(),
        *cancel_rows(),
    ]
    return {one.name: one for one in every}
