"""The rows of the table: what is done to a run, and what its outcome must be."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Final, Literal

from agent_runs.client.attach import Ticket
from agent_runs.client.outcome import Cancelled, cancel, fetch_outcome
from agent_runs.contracts.outcome import Outcome
from agent_runs.kube.ownership import CLAIMED_BY
from dev_stack.cluster.kinds import JOBS, PODS, Object
from tests.faults.checks import Expected
from tests.faults.environment import EXITS_ON_SIGTERM, POLL_SECONDS, WRITES_ALL_LINES, Environment, processes_of
from tests.support.sqlite import locked

Scenario = Callable[[Environment], Awaitable[Outcome]]

LOST: Final = ("k8s_pod_lost", None)
"""The first attempt lost its pod, the second one succeeded."""


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        name: of its test and its result; with `agent` it begins with that.
        fault: the group of the table that it belongs to.
        action: what is done, for the reader of the table.
        server: needs a Temporal server that it may stop.
        served: what the agent runs in, a pod of its own or one that is claimed; None: a script is the agent.
        agent: the real one besides OpenCode, whose column has the row; empty: the row is a line of its own.
        opencode: the version of the real OpenCode, its first number.
    """

    name: str
    fault: str
    action: str
    scenario: Scenario
    expected: Expected
    quick: bool = False
    server: bool = False
    served: Literal["own", "claimed"] | None = None
    agent: str = ""
    opencode: int = 1


def row(
    fault: str,
    name: str,
    action: str,
    scenario: Scenario,
    code: str | None = None,
    attempts: tuple[str | None, ...] | None = None,
    *,
    bound: int = 300,
    quick: bool = False,
    server: bool = False,
) -> Row:
    expected = Expected(code, (code,) if attempts is None else attempts, timedelta(seconds=bound))
    return Row(name, fault, action, scenario, expected, quick, server)


async def at_work(env: Environment, body: str = WRITES_ALL_LINES) -> Ticket:
    """A run whose agent has written the first half of its lines, and awaits its release."""
    env.agent(body)
    ticket = await env.start()
    await env.worker()
    await env.until_stored()
    return ticket


async def killed_by_itself(env: Environment, step: str, moment: str) -> Ticket:
    """A run whose worker has killed itself at this moment; there is no other one yet."""
    ticket = await env.start()
    worker = await env.worker(step, moment)
    assert await worker.end() == -signal.SIGKILL
    return ticket


# ---------------------------------------------------------------- workers


async def killed_at(step: str, moment: str, env: Environment) -> Outcome:
    env.agent(waits_for_release=False)
    ticket = await killed_by_itself(env, step, moment)
    await env.worker()
    return await env.outcome(ticket)


async def killed_while_cancelling(moment: str, env: Environment) -> Outcome:
    env.agent(EXITS_ON_SIGTERM)
    ticket = await env.start()
    first_worker = await env.worker("stop_agent", moment)
    await env.until_stored()
    cancelling = begin_cancel(env, ticket)
    assert await first_worker.end() == -signal.SIGKILL
    await env.worker()
    answer = await cancelling
    assert (answer.outcome, answer.stop.agent_stopped) == ("cancelled", True)
    return await env.outcome(ticket)


async def killed_while_agent_is_silent(env: Environment) -> Outcome:
    env.agent(silenceTimeoutSec=5)
    ticket = await env.start()
    first_worker = await env.worker()
    await env.until_stored()
    first_worker.send(signal.SIGKILL)
    await env.worker()
    return await env.outcome(ticket)


async def killed_with_silence_unreported(env: Environment) -> Outcome:
    env.agent(silenceTimeoutSec=2)
    ticket = await killed_by_itself(env, "stream_logs", "after")
    await env.worker()
    return await env.outcome(ticket)


async def ended_in_the_middle(by: signal.Signals, env: Environment) -> Outcome:
    env.agent()
    ticket = await env.start()
    first = await env.worker()
    await env.until_stored()
    first.send(by)
    assert await first.end() == (0 if by == signal.SIGTERM else -signal.SIGKILL)
    env.release_agent()
    await env.worker()
    return await env.outcome(ticket)


STEPS: Final = (
    "prepare_run",
    "introspect_pod",
    "bundle_prompt",
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
        row(fault, f"sigkill-{moment}-{step}", f"SIGKILL when `{step}` {state}", partial(killed_at, step, moment))
        for step in STEPS
        for moment, state in MOMENTS.items()
    ]
    rows += [
        row(
            fault,
            f"sigkill-{moment}-stop_agent",
            f"SIGKILL when `stop_agent` of a cancel {state}",
            partial(killed_while_cancelling, moment),
            "cancelled",
        )
        for moment, state in MOMENTS.items()
    ]
    rows += [
        row(
            fault,
            "sigkill-in-silence",
            "SIGKILL while the agent is silent; another worker takes over",
            killed_while_agent_is_silent,
            "agent_silent",
        ),
        row(
            fault,
            "sigkill-after-silence",
            "SIGKILL when `stream_logs` has found the agent silent and reported nothing",
            killed_with_silence_unreported,
            "agent_silent",
        ),
    ]
    middle = "while the agent writes; another worker takes over"
    return [
        *rows,
        row(fault, "sigkill-in-the-stream", f"SIGKILL {middle}", partial(ended_in_the_middle, signal.SIGKILL)),
        row(fault, "sigterm-roll", f"SIGTERM {middle}", partial(ended_in_the_middle, signal.SIGTERM), quick=True),
    ]


# ---------------------------------------------------------------- Temporal


async def temporal_stopped(seconds: float, env: Environment) -> Outcome:
    ticket = await at_work(env)
    assert env.server is not None
    await env.server.stop(seconds, meanwhile=env.release_agent)
    return await env.outcome(ticket)


def temporal_rows() -> list[Row]:
    action = "the server is stopped while the agent writes, and is back after {} s"
    return [
        row(
            "Temporal",
            f"temporal-stopped-{seconds}s",
            action.format(seconds),
            partial(temporal_stopped, seconds),
            server=True,
            bound=300 + seconds,
            quick=seconds == 5,
        )
        for seconds in (5, 60)
    ]


# ---------------------------------------------------------------- the API server


async def api_answers(answer: dict[str, float | None], env: Environment) -> Outcome:
    """One fault for each kind of object: which of two concurrent steps meets a shared one is chance."""
    env.agent(waits_for_release=False)
    faults = [env.system.embedded.faults.http(path=f"/{kind}", **answer) for kind in ("secrets", "jobs", "pods")]
    ticket = await env.start()
    await env.worker()
    outcome = await env.outcome(ticket)
    assert all(fault.hits >= (fault.times or 1) for fault in faults)
    return outcome


async def api_server_stopped_while_the_agent_writes(seconds: float, env: Environment) -> Outcome:
    ticket = await at_work(env)
    env.release_agent()
    await env.system.embedded.faults.restart_api_server(seconds)
    return await env.outcome(ticket)


async def api_server_stopped_before_the_job(seconds: float, env: Environment) -> Outcome:
    env.agent(waits_for_release=False)
    refused = env.system.embedded.faults.http(method="POST", path="/jobs$", status=503, times=None)
    ticket = await env.start()
    await env.worker()
    await env.until_step(ticket, "create_job", attempt=2)
    refused.times = refused.hits  # from here on nothing answers at all
    await env.system.embedded.faults.restart_api_server(seconds)
    return await env.outcome(ticket)


async def creation_unanswered(env: Environment) -> Outcome:
    env.agent(waits_for_release=False)
    lost = env.system.embedded.faults.http(method="POST", path="/jobs$", cut_after=0)
    ticket = await env.start()
    await env.worker()
    outcome = await env.outcome(ticket)
    assert lost.hits == 1
    return outcome


def api_rows() -> list[Row]:
    fault = "API server"
    return [
        row(fault, "api-429", "3 requests about each of Secrets, Jobs and pods get a 429, Retry-After 1 s",
            partial(api_answers, {"status": 429, "retry_after": 1, "times": 3}), bound=600),
        row(fault, "api-500", "3 requests about each of Secrets, Jobs and pods get a 500",
            partial(api_answers, {"status": 500, "times": 3}), bound=600),
        row(fault, "api-slow", "each response takes 3 s",
            partial(api_answers, {"delay": 3.0, "times": None}), bound=600),
        row(fault, "api-server-stopped-60s", "stopped for 60 s while the agent writes",
            partial(api_server_stopped_while_the_agent_writes, 60), bound=600),
        row(fault, "api-server-stopped-60s-before-the-job", "stopped for 60 s when the Job is to be created",
            partial(api_server_stopped_before_the_job, 60), bound=600),
        row(fault, "creation-unanswered", "the Job is created and the response is lost",
            creation_unanswered, quick=True),
    ]  # fmt: skip


# ---------------------------------------------------------------- the pod and its node


async def pod_fault(inject: Callable[[Environment, Object], Awaitable[None]], env: Environment) -> Outcome:
    """A fault of the pod while the agent writes; the next attempt, if there is one, need not wait."""
    ticket = await at_work(env)
    pod = await env.pod()
    await inject(env, pod)
    await until(lambda: not processes_of(env.agent_id))
    env.release_agent()
    return await env.outcome(ticket)


async def evicted(env: Environment, pod: Object) -> None:
    await env.system.embedded.faults.evict(pod["metadata"]["name"])


async def deleted(env: Environment, pod: Object) -> None:
    env.system.embedded.faults.delete_pod(pod["metadata"]["name"], grace=0)


async def node_lost(env: Environment, _pod: Object) -> None:
    await env.system.embedded.faults.lose_node(forget_after=3)
    await env.until_none_left(PODS)
    await env.system.embedded.faults.recover_node()


async def out_of_memory(env: Environment, pod: Object) -> None:
    """As the kernel does at the memory limit, which the embedded cluster does not enforce."""
    await env.system.embedded.faults.kill_container(pod["metadata"]["name"], "opencode", oom=True)


async def job_deleted(env: Environment, _pod: Object) -> None:
    job = await env.system.kubernetes.read_job("default", env.left(JOBS)[0])
    assert job is not None
    await env.system.kubernetes.delete_job("default", job.metadata.name, job.metadata.uid)


async def job_removed_before(step: str, moment: str, env: Environment) -> Outcome:
    """The worker is killed, agent and sidecar end, the Job's TTL deletes it; then another worker starts."""
    env.agent(waits_for_release=False, maxUnreadSec=0)
    ticket = await killed_by_itself(env, step, moment)
    for name in env.left(JOBS):  # so that Kubernetes deletes the Job as soon as it has ended
        env.system.embedded.store.change(
            JOBS, "default", name, lambda body: body["spec"].update(ttlSecondsAfterFinished=0)
        )
    await env.until_none_left(JOBS)
    await env.worker()
    return await env.outcome(ticket)


def cluster_rows() -> list[Row]:
    fault, deleted_job = "cluster", "k8s_job_deleted_externally"
    return [
        row(fault, "pod-evicted", "the pod is evicted", partial(pod_fault, evicted), None, LOST),
        row(fault, "pod-deleted", "somebody deletes the pod", partial(pod_fault, deleted), None, LOST),
        row(fault, "job-deleted", "somebody deletes the Job", partial(pod_fault, job_deleted), deleted_job),
        row(fault, "node-lost", "the node is lost, its pod is deleted 3 s later",
            partial(pod_fault, node_lost), None, LOST),
        row(fault, "oom-killed", "the container is OOMKilled",
            partial(pod_fault, out_of_memory), "oom_killed", quick=True),
        row(fault, "ttl-before-the-log", "worker killed, agent ended, Job deleted by its TTL before its log was read",
            partial(job_removed_before, "stream_logs", "before"), deleted_job),
        row(fault, "ttl-before-the-creation-is-repeated",
            "worker killed when it had created the Job, agent ended, Job deleted by its TTL, creation repeated",
            partial(job_removed_before, "create_job", "after"), deleted_job),
    ]  # fmt: skip


# ---------------------------------------------------------------- callers


async def duplicate_wake(env: Environment) -> Outcome:
    env.agent()
    wake = env.wake(retain_outcome=False)
    tickets = await asyncio.gather(*(env.attach(wake) for _ in range(20)))
    assert sorted(ticket.kind for ticket in tickets) == ["joined"] * 19 + ["started"]
    await env.worker()
    await env.until_stored()
    tickets.append(await env.attach(wake))
    env.release_agent()
    outcomes = await asyncio.gather(*(env.outcome(ticket) for ticket in tickets))
    assert all(outcome == outcomes[0] for outcome in outcomes)
    tickets.append(await env.attach(wake))
    assert (tickets[-1].kind, tickets[-1].closed) == ("joined", True)
    return await env.outcome(tickets[-1])


async def next_wake(env: Environment) -> Outcome:
    """The next wake of the task joins and collects the outcome, which ends its retention."""
    wake = env.wake(runId=f"{env.raw['runId']}-next")
    while (ticket := await env.attach(wake)).holder is not None and ticket.holder.note:
        pass  # no worker of a busy machine has answered yet, as the ticket says: a caller asks once more
    assert (ticket.kind, ticket.run_id) == ("joined", env.raw["runId"])
    env.release_agent()
    outcome = await fetch_outcome(ticket.handle(env.system.temporal), collect=True)
    assert await env.outcome(ticket) == outcome
    return outcome


async def caller_killed(when: str, env: Environment) -> Outcome:
    env.agent()
    if when == "before":
        caller = await env.caller()
    else:
        await env.worker()
        caller = await env.caller(collects=when == "during")
        await env.until_stored()
    if when == "after":
        env.release_agent()
        await env.until_file("outcome")
    caller.send(signal.SIGKILL)
    assert await caller.end() == -signal.SIGKILL
    if when == "before":
        await env.worker()
    return await next_wake(env)


def caller_rows() -> list[Row]:
    fault, then = "caller", "the next wake of the task gets the outcome"
    actions = {
        "before": "killed with its ticket, before any worker has seen the run",
        "during": "killed while the agent writes",
        "after": "killed when the run has ended and its outcome is not collected",
    }
    return [
        row(fault, "duplicate-wake", "20 wakes with one run id at once, one later, one after the end", duplicate_wake,
            quick=True),
        *(row(fault, f"caller-killed-{when}", f"{action}; {then}", partial(caller_killed, when))
          for when, action in actions.items()),
    ]  # fmt: skip


# ---------------------------------------------------------------- disks


async def store_locked(seconds: float, env: Environment) -> Outcome:
    ticket = await at_work(env)
    with locked(env.folder / "transcripts.db"):
        env.release_agent()
        await asyncio.sleep(seconds)
    return await env.outcome(ticket)


async def store_full(env: Environment) -> Outcome:
    env.agent(
        f"write_lines 0 {{half}}; await_release; write_lines {{half}} {{lines}} ' {'x' * 200}'; finish", lines=2000
    )
    ticket = await env.start()
    await env.worker()
    await env.until_stored()
    (env.folder / "full").touch()
    env.release_agent()
    attempt = 2
    while True:  # on a busy machine an activity attempt may also end by its heartbeat time-out
        attempt += 1
        failure = (await env.until_step(ticket, "stream_logs", attempt)).last_failure
        if failure.application_failure_info.type == "transcripts_unavailable":
            break
        assert failure.timeout_failure_info.timeout_type, failure
    (env.folder / "full").unlink()
    return await env.outcome(ticket)


def disk_rows() -> list[Row]:
    return [
        row("disks", "store-locked-30s", "the transcript store is locked for 30 s", partial(store_locked, 30)),
        row("disks", "store-full", "the transcript store's disk is full for a while", store_full),
    ]


# ---------------------------------------------------------------- cancels


async def cancel_queued(env: Environment) -> Outcome:
    """Before any worker has seen the run."""
    env.agent()
    ticket = await env.start()
    cancelling = begin_cancel(env, ticket)
    await env.worker()
    return await stopped(env, ticket, cancelling, agent_started=False)


async def cancel_bundling(env: Environment) -> Outcome:
    """While the API server answers slowly to the prompt's Secret."""
    env.agent()
    slow = env.system.embedded.faults.http(method="POST", path="/secrets$", delay=3.0)
    ticket = await env.start()
    await env.worker()
    await env.until_step(ticket, "bundle_prompt")
    await until(lambda: slow.hits == 1)
    cancelling = begin_cancel(env, ticket)
    return await stopped(env, ticket, cancelling, agent_started=False)


async def cancel_creating(env: Environment) -> Outcome:
    """While the API server answers slowly to the Job."""
    env.agent()
    slow = env.system.embedded.faults.http(method="POST", path="/jobs$", delay=3.0)
    ticket = await env.start()
    await env.worker()
    await until(lambda: slow.hits == 1)
    cancelling = begin_cancel(env, ticket)
    return await stopped(env, ticket, cancelling)


async def cancel_created(env: Environment) -> Outcome:
    """The agent runs, and no worker knows of its Job yet: the response to its creation was lost."""
    env.agent(EXITS_ON_SIGTERM)
    faults = env.system.embedded.faults
    faults.http(method="POST", path="/jobs$", cut_after=0)
    slow = faults.http(method="GET", path="/jobs/", delay=3.0)
    ticket = await env.start()
    await env.worker()
    await env.until_file("starts")
    await until(lambda: slow.hits == 1)
    cancelling = begin_cancel(env, ticket)
    return await stopped(env, ticket, cancelling, agent_started=True)


async def cancel_pending(env: Environment) -> Outcome:
    """While no node takes the pod."""
    env.agent(nodeSelector={"no-such-node": "yes"})
    ticket = await env.start()
    await env.worker()
    await env.pod()
    cancelling = begin_cancel(env, ticket)
    return await stopped(env, ticket, cancelling, agent_started=False)


async def cancel_running(env: Environment) -> Outcome:
    """While the agent writes; by five callers at once."""
    ticket = await at_work(env, EXITS_ON_SIGTERM)
    handle = ticket.handle(env.system.temporal)
    answers = await asyncio.gather(*(cancel(handle, "wrong branch") for _ in range(5)))
    assert all(answer == answers[0] for answer in answers)
    return await stopped(
        env, ticket, asyncio.ensure_future(cancel(handle, "the same cancel, later")), agent_started=True
    )


async def cancel_finishing(env: Environment) -> Outcome:
    """While the API server answers slowly to the cleanup: the run has succeeded and stays so."""
    env.agent(waits_for_release=False)
    slow = env.system.embedded.faults.http(method="DELETE", path="/jobs/", delay=3.0)
    ticket = await env.start()
    await env.worker()
    await until(lambda: slow.hits == 1)
    answer = await cancel(ticket.handle(env.system.temporal), "too late")
    assert answer.outcome == "ended before"
    assert answer.stop.agent_stopped
    return await env.outcome(ticket)


def begin_cancel(env: Environment, ticket: Ticket) -> asyncio.Task[Cancelled]:
    return asyncio.create_task(cancel(ticket.handle(env.system.temporal), "wrong branch"))


async def stopped(
    env: Environment, ticket: Ticket, cancelling: asyncio.Future[Cancelled], *, agent_started: bool | None = None
) -> Outcome:
    """The answer to a cancel agrees with the outcome."""
    answer = await cancelling
    outcome = await env.outcome(ticket)
    assert (answer.outcome, answer.stop) == ("cancelled", outcome.stop)
    assert answer.stop.agent_stopped
    assert agent_started is None or answer.stop.agent_started == agent_started
    return outcome


async def until(condition: Callable[[], bool]) -> None:
    """Poll: faults count their hits without any notification."""
    while not condition():  # noqa: ASYNC110 - there is no notification
        await asyncio.sleep(POLL_SECONDS)


def cancel_rows() -> list[Row]:
    fault = "cancel"
    return [
        row(fault, "cancel-queued", "before any worker has seen the run", cancel_queued, "cancelled", attempts=()),
        row(fault, "cancel-bundling", "while the prompt is bundled", cancel_bundling, "cancelled"),
        row(fault, "cancel-creating", "while the Job is created", cancel_creating, "cancelled"),
        row(fault, "cancel-created", "while the agent writes and its creation is not yet known to have succeeded",
            cancel_created, "cancelled"),
        row(fault, "cancel-pending", "while no node takes the pod", cancel_pending, "cancelled"),
        row(fault, "cancel-running", "while the agent writes, by five callers, and once more after the end",
            cancel_running, "cancelled", quick=True),
        row(fault, "cancel-finishing", "while the Job of a succeeded run is cleaned up", cancel_finishing),
    ]  # fmt: skip


# ---------------------------------------------------------------- OpenCode's server, and pods that are claimed

CLAIM: Final = "/exec.*command=claim"
"""The request that hands prompt and tokens to a pod that has been claimed."""


async def in_the_claimed_pod(scenario: Scenario, env: Environment) -> Outcome:
    """The first attempt has the pod of the agent's run before."""
    outcome = await scenario(env)
    assert outcome.attempts[0].job_name in env.earlier_jobs
    return outcome


async def killed_before_the_prompt(env: Environment) -> Outcome:
    """The Job is annotated, and the API server does not answer to the exec before the worker is killed."""
    env.agent(waits_for_release=False)
    ticket = await env.start()
    first_worker = await env.worker()
    await until_claimed(env)
    first_worker.send(signal.SIGKILL)
    await first_worker.end()
    await env.worker()
    return await env.outcome(ticket)


async def api_server_stopped_before_the_prompt(seconds: float, env: Environment) -> Outcome:
    env.agent(waits_for_release=False)
    ticket = await env.start()
    await env.worker()
    await until_claimed(env)
    await env.system.embedded.faults.restart_api_server(seconds)
    return await env.outcome(ticket)


async def cancel_before_the_prompt(env: Environment) -> Outcome:
    env.agent()
    ticket = await env.start()
    await env.worker()
    await until_claimed(env)
    return await stopped(env, ticket, begin_cancel(env, ticket))


async def cancel_after_the_prompt(env: Environment) -> Outcome:
    """The pod has the prompt, no worker knows of it, and none runs when the cancel comes."""
    env.agent()
    ticket = await killed_by_itself(env, "create_job", "after")
    await env.until_file("starts")
    cancelling = begin_cancel(env, ticket)
    await env.worker()
    return await stopped(env, ticket, cancelling)


async def until_claimed(env: Environment) -> None:
    """Returns once the Job is annotated and the API server holds the request with the prompt back."""
    held = env.system.embedded.faults.http(path=CLAIM, delay=5.0)
    await until(lambda: held.hits == 1)
    assert [job["metadata"]["annotations"].get(CLAIMED_BY) for job in env.present(JOBS)] == [f"{env.raw['runId']}/1"]


async def log_cut(env: Environment) -> Outcome:
    """The kubelet ends the log, and three further requests for it break off in their first line: each is in vain."""
    ticket = await at_work(env)
    faults = env.system.embedded.faults
    cut = faults.http(path="/log", cut_after=100, times=3)
    faults.end_follows()
    env.release_agent()
    outcome = await env.outcome(ticket)
    assert cut.hits == 3
    return outcome


def served_rows() -> list[Row]:
    """The same faults, of the real OpenCode."""
    killed, middle = "SIGKILL when `{}` {}", "while the agent works"
    stopped_for = "stopped for 15 s while the agent works"
    both: dict[str, tuple[str, Scenario]] = {
        **{
            f"sigkill-{moment}-{step}": (killed.format(step, MOMENTS[moment]), partial(killed_at, step, moment))
            for step, moment in (("create_job", "after"), ("stream_logs", "after"), ("finish", "after"))
        },
        "sigkill": (f"SIGKILL {middle}", partial(ended_in_the_middle, signal.SIGKILL)),
        "temporal-stopped": ("Temporal is stopped for 5 s while the agent works", partial(temporal_stopped, 5)),
        "api-server-stopped": (
            f"the API server is {stopped_for}",
            partial(api_server_stopped_while_the_agent_writes, 15),
        ),
        "log-cut": ("the kubelet ends the log, and breaks it off three times", log_cut),
        "pod-evicted": ("the pod is evicted while the agent works", partial(pod_fault, evicted)),
        "cancel": ("cancel while the agent works, by five callers, and once more after the end", cancel_running),
    }
    only_claimed: dict[str, tuple[str, Scenario]] = {
        **{
            f"sigkill-{moment}-{step}": (killed.format(step, MOMENTS[moment]), partial(killed_at, step, moment))
            for step, moment in (
                ("bundle_prompt", "after"),
                ("create_job", "before"),
                ("stream_logs", "before"),
                ("finish", "before"),
            )
        },
        "sigkill-before-prompt": ("SIGKILL between the Job's annotation and the prompt", killed_before_the_prompt),
        "api-server-stopped-before-prompt": (
            "the API server is stopped for 15 s between the Job's annotation and the prompt",
            partial(api_server_stopped_before_the_prompt, 15),
        ),
        "cancel-before-prompt": ("cancel between the Job's annotation and the prompt", cancel_before_the_prompt),
        "cancel-after-prompt": (
            "cancel after the prompt, while no worker runs or knows that the pod has it",
            cancel_after_the_prompt,
        ),
    }
    groups: tuple[tuple[int, Literal["own", "claimed"], str, str, dict[str, tuple[str, Scenario]]], ...] = (
        (1, "own", "OpenCode's server", "served", both),
        (1, "claimed", "claimed pod", "claimed", both | only_claimed),
        (2, "own", "OpenCode 2's server", "served-2", both),
        (2, "claimed", "claimed pod of OpenCode 2", "claimed-2", both | only_claimed),
    )
    return [
        replace(served_row(group, served, f"{begin}-{name}", *what), opencode=version)
        for version, served, group, begin, faults in groups
        for name, what in faults.items()
    ]


CREATES_ITS_OWN: Final = "sigkill-before-create_job"
"""A later activity attempt claims nothing: an earlier one may have created a Job."""


def served_row(fault: str, served: Literal["own", "claimed"], name: str, action: str, scenario: Scenario) -> Row:
    cancels, lost = "cancel" in name, "evicted" in name
    if served == "claimed" and not cancels and not name.endswith(CREATES_ITS_OWN):
        scenario = partial(in_the_claimed_pod, scenario)
    code, attempts = "cancelled" if cancels else None, LOST if lost else None
    made = row(fault, name, action, scenario, code, attempts, bound=600, server="temporal" in name)
    return replace(made, served=served)


def rows_with_one_agent() -> list[Row]:
    """Those of a scripted agent and of OpenCode, in the order of the tables."""
    return [
        *worker_rows(),
        *temporal_rows(),
        *api_rows(),
        *cluster_rows(),
        *caller_rows(),
        *disk_rows(),
        *cancel_rows(),
        *served_rows(),
    ]
