"""The rows of the table whose columns are the agents besides OpenCode."""

import os
import signal
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from agent_runs.contracts.outcome import Outcome
from dev_stack.agent_programs import PROGRAMS
from dev_stack.cluster.kinds import Object
from tests.faults.acp_environment import AcpEnvironment
from tests.faults.environment import Environment
from tests.faults.scenarios import (
    LOST,
    MOMENTS,
    Row,
    Scenario,
    api_server_stopped_while_the_agent_writes,
    at_work,
    begin_cancel,
    cancel_before_the_prompt,
    cancel_running,
    deleted,
    ended_in_the_middle,
    in_the_claimed_pod,
    killed_at,
    killed_before_the_prompt,
    out_of_memory,
    pod_fault,
    row,
    stopped,
)
from tests.support.ends import assert_verified

STOPPED_SECONDS: Final = 5
KILLED_WHEN: Final = "worker SIGKILLed when `{}` {}"


async def kubelet_restarted(env: Environment) -> Outcome:
    ticket = await at_work(env)
    env.release_agent()
    await env.system.embedded.faults.restart_kubelet(STOPPED_SECONDS)
    return await env.outcome(ticket)


async def sidecar_killed(env: Environment, pod: Object) -> None:
    await env.system.embedded.faults.kill_container(pod["metadata"]["name"], "sidecar")


async def driver_killed(env: Environment) -> Outcome:
    """Twice: the second one finds what the first one had written."""
    assert isinstance(env, AcpEnvironment)
    env.agent()
    ticket = await env.start()
    await env.worker()
    for count in (1, env.half):
        await env.until_stored(count)
        kill(await env.helpers_of_sidecar())
    env.release_agent()
    return await env.outcome(ticket)


async def agent_killed(env: Environment) -> Outcome:
    assert isinstance(env, AcpEnvironment)
    ticket = await at_work(env)
    kill(env.agents.programs_of(env.raw))
    return await env.outcome(ticket)


def kill(pids: list[int]) -> None:
    assert pids
    for pid in pids:
        with suppress(ProcessLookupError):  # it ended with the one before
            os.kill(pid, signal.SIGKILL)


async def in_one_session(scenario: Scenario, env: Environment) -> Outcome:
    """Every attempt continues the session of the first one."""
    outcome = await scenario(env)
    lines = [line for each in outcome.attempts for line in await env.system.events(env.raw, each.attempt)]
    assert {line["sessionID"] for line in lines} - {""} == {outcome.session_id}
    return outcome


async def timed_out(seconds: int, env: Environment) -> Outcome:
    env.agent(timeoutSec=seconds)
    ticket = await env.start()
    await env.worker()
    outcome = await env.outcome(ticket)
    assert outcome.timed_out
    return outcome


async def cancel_in_a_tool(env: Environment) -> Outcome:
    """What the tool has done until then is whole."""
    outcome = await cancel_running(env)
    assert_verified(outcome)
    return outcome


async def without_a_request(scenario: Scenario, env: Environment) -> Outcome:
    """The model is asked for nothing."""
    assert isinstance(env, AcpEnvironment)
    asked = len(env.agents.model.requests)
    outcome = await scenario(env)
    assert len(env.agents.model.requests) == asked
    return outcome


async def cancel_while_the_agent_starts(env: Environment) -> Outcome:
    """The claimed pod has the prompt, and its agent does not answer yet."""
    env.agent()
    (env.folder / "hold").touch()
    ticket = await env.start()
    await env.worker()
    await env.until_file("held")
    return await stopped(env, ticket, begin_cancel(env, ticket), agent_started=True)


def acp_rows() -> list[Row]:
    """One row for each fault and agent."""
    killed = {
        f"sigkill-{moment}-{step}": (KILLED_WHEN.format(step, MOMENTS[moment]), partial(killed_at, step, moment))
        for step, moment in (("create_job", "before"), ("create_job", "after"), ("stream_logs", "after"))
    }
    own: dict[str, tuple[str, Scenario]] = {
        **killed,
        "sigkill": ("worker SIGKILLed while lines come", partial(ended_in_the_middle, signal.SIGKILL)),
        "api-server-stopped": (
            f"the API server is stopped for {STOPPED_SECONDS} s while lines come",
            partial(api_server_stopped_while_the_agent_writes, STOPPED_SECONDS),
        ),
        "kubelet-restarted": (f"the kubelet is away for {STOPPED_SECONDS} s while lines come", kubelet_restarted),
        "pod-deleted": ("somebody deletes the pod", partial(in_one_session, partial(pod_fault, deleted))),
        "sidecar-killed": ("the sidecar is SIGKILLed", partial(in_one_session, partial(pod_fault, sidecar_killed))),
        "driver-killed": ("the sidecar's driver and API proxy are SIGKILLed, twice", driver_killed),
        "agent-killed": ("the agent's process is SIGKILLed", agent_killed),
        "oom-killed": ("the agent's container is OOMKilled", partial(pod_fault, out_of_memory)),
        "cancel": ("cancel while lines come, by five callers, and once more after the end", cancel_in_a_tool),
        "timeout": ("the agent works longer than `timeoutSec`", partial(timed_out, 20)),
    }
    claimed: dict[str, tuple[str, Scenario]] = {
        "claimed-sigkill": (
            "worker SIGKILLed between a claim's annotation and its prompt",
            partial(in_the_claimed_pod, killed_before_the_prompt),
        ),
        "claimed-cancel-before-prompt": (
            "cancel between a claim's annotation and its prompt",
            cancel_before_the_prompt,
        ),
        "claimed-cancel-at-start": (
            "cancel when the claimed pod has the prompt and its agent is starting",
            partial(in_the_claimed_pod, partial(without_a_request, cancel_while_the_agent_starts)),
        ),
    }
    return [acp_row(agent, fault, *what) for fault, what in (own | claimed).items() for agent in PROGRAMS]


ENDS: Final = {
    "pod-deleted": (None, LOST),
    "sidecar-killed": (None, LOST),
    "agent-killed": ("agent_lost", None),
    "oom-killed": ("oom_killed", None),
    "timeout": ("timeout", None),
}
"""Outcome and, where there are several, attempts."""


def acp_row(agent: str, fault: str, action: str, scenario: Scenario) -> Row:
    code, attempts = ENDS.get(fault, ("cancelled" if "cancel" in fault else None, None))
    made = row("other agents", f"{agent}-{fault}", action, scenario, code, attempts, bound=600)
    return replace(made, served="claimed" if fault.startswith("claimed") else "own", agent=agent)
