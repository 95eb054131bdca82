"""The commands `demo`, `dev` and `cluster`. Each returns its exit code."""

import asyncio
import shlex
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from agent_runs.cli.display import Display
from agent_runs.cli.follow import DETACHED, Interrupted, Interrupts, RunFollower
from agent_runs.cli.program import Refused
from agent_runs.cli.runs import describe_holder, run_ref, sealed_wake, show_outcome
from agent_runs.cli.transcripts import RunOutput, open_transcripts
from agent_runs.client.attach import Ticket, attach
from agent_runs.client.outcome import outcome_at_close
from agent_runs.client.wake import Wake
from agent_runs.contracts.identity import RunKey
from agent_runs.contracts.outcome import Outcome
from agent_runs.contracts.request import OPENCODE
from dev_stack import demo as example
from dev_stack.agent_programs import provider_variables
from dev_stack.plan import Plan
from dev_stack.stack import Stack

if TYPE_CHECKING:
    from agent_runs.cli.transcripts import Transcripts

ENVIRONMENT: Final = "environment.sh"
"""In the state folder: what other terminals source."""
PAPERCLIP: Final = {"AGENT_RUNS_PAPERCLIP_API_URL": "http://127.0.0.1:3100"}
"""Where Paperclip listens by default. It is right for agents of the embedded cluster, too: they share this loopback."""


@dataclass(frozen=True)
class Demonstrated:
    """A run of the demonstration that has ended.

    Attributes:
        first_line: seconds from its start to its first line on this display; None: it wrote none.
    """

    raw: dict[str, Any]
    ticket: Ticket
    outcome: Outcome
    code: int
    first_line: float | None


async def demo(plan: Plan, display: Display, *, scenario: str, keep: bool, twice: bool = False) -> int:
    """One agent run from a real execution context, end to end, on this machine.

    Args:
        twice: then wake the agent a second time for the same task, and show how long each wake took to its first line.
    """
    start = monotonic()
    if twice:
        plan = replace(plan, paperclip_api_url=PAPERCLIP["AGENT_RUNS_PAPERCLIP_API_URL"])  # nobody has to listen there
    with Interrupts.installed() as interrupts:
        try:
            async with _running_stack(plan, display, interrupts) as stack:
                code = await _demonstrate(stack, display, interrupts, scenario, twice=twice)
                display.note(f"{monotonic() - start:.1f} s in all")
                if keep:
                    display.note("the stack stays up until Ctrl-C")
                    display.values(stack.addresses.environment)
                    await stack.guard(interrupts.first.wait())
                    display.note("interrupted; the stack is stopped")
        except Interrupted:
            display.note("interrupted; the stack is stopped")
            return DETACHED
    return code


async def dev(plan: Plan, display: Display) -> int:
    with Interrupts.installed() as interrupts:
        try:
            async with _running_stack(plan, display, interrupts) as stack:
                addresses = stack.addresses
                environment = addresses.environment | (PAPERCLIP if plan.embedded else {})
                file = plan.state / ENVIRONMENT
                file.write_text(exports(environment))
                display.values(
                    {"Web UI": addresses.web_ui, "scripted model": addresses.model, "logs": f"{plan.state}/log"}
                )
                display.note(f"all runs: {addresses.pages}/runs, with the token in {addresses.operator_token}")
                display.note(f"for other terminals: source {file}")
                display.values(environment)
                display.note("Ctrl-C ends it")
                await stack.guard(interrupts.first.wait())
                display.note("interrupted; the stack is stopped")
        except Interrupted:
            display.note("interrupted")
    return 0


def exports(environment: dict[str, str]) -> str:
    """Lines for a shell."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())


async def cluster(state: Path, port: int, display: Display) -> int:
    from dev_stack.cluster import CannotStart, EmbeddedCluster  # noqa: PLC0415 - the other commands start a process

    with Interrupts.installed() as interrupts:
        try:
            async with EmbeddedCluster(state, port) as embedded:
                kubeconfig = str(embedded.kubeconfig_path)
                display.values({"url": embedded.url, "token": embedded.token, "KUBECONFIG": kubeconfig})
                display.note("Ctrl-C ends it and its containers")
                await interrupts.first.wait()
        except CannotStart as error:
            raise Refused(str(error)) from None
    return 0


@asynccontextmanager
async def _running_stack(plan: Plan, display: Display, interrupts: Interrupts) -> AsyncIterator[Stack]:
    """The stack, ready. Interrupting its start ends it too."""
    async with AsyncExitStack() as parts:
        yield await interrupts.during(parts.enter_async_context(Stack.up(plan, display.note)))


async def _demonstrate(stack: Stack, display: Display, interrupts: Interrupts, scenario: str, *, twice: bool) -> int:
    """The runs of the demonstration; the exit code of the last."""
    choices = [example.context(scenario, agent) for agent in (example.AGENT, str(uuid.uuid4()))]
    name = stack.plan.agent
    for raw in choices:
        if name == OPENCODE:
            served = twice or stack.plan.opencode != 1
            raw["config"]["transport"] = "auto" if served else "run"  # a pod rests only with the server
        else:
            variables = provider_variables(name, stack.addresses.model)
            raw["config"] |= {"agent": name, "env": {**raw["config"].get("env", {}), **variables}}
            raw["config"] |= {} if twice else {"keepWarmSec": 0}
    first = await _run(stack, display, interrupts, choices)
    if not twice or first.code:
        return first.code
    await interrupts.during(stack.guard(outcome_at_close(first.ticket.handle(stack.client))))
    later = example.later_context(first.raw, first.outcome.session_params)
    second = await _run(stack, display, interrupts, [later])
    for name, run in {"first": first, "second": second}.items():
        took = "no line" if run.first_line is None else f"{run.first_line:.1f} s from its start to its first line"
        display.note(f"{name} wake: {took}")
    return second.code


async def _run(
    stack: Stack, display: Display, interrupts: Interrupts, choices: Sequence[dict[str, Any]]
) -> Demonstrated:
    began = monotonic()
    raw, wake, ticket = await _start_run(stack, display, choices)
    async with open_transcripts(stack.settings) as store:
        first_line = asyncio.create_task(_first_line(store, wake.key))
        try:
            outcome = await _follow_run(stack, display, interrupts, store, wake, ticket)
        finally:
            first_line.cancel()
            await asyncio.wait([first_line])
    code = show_outcome(display, wake.key.run_id, outcome)
    came = None if first_line.cancelled() or first_line.exception() else first_line.result() - began
    return Demonstrated(raw, ticket, outcome, code, came)


async def _first_line(store: "Transcripts", run: RunKey) -> float:
    """The moment at which the first line of the agent's standard output arrives here."""
    async with aclosing(RunOutput(store, run, lambda: False).lines()) as output:
        async for _, line in output:
            if line.stream == "stdout":
                return monotonic()
    raise AssertionError("the run never counts as ended here")


async def _start_run(
    stack: Stack, display: Display, choices: Sequence[dict[str, Any]]
) -> tuple[dict[str, Any], Wake, Ticket]:
    """The first of these contexts whose agent is not held by an earlier demonstration, and its run."""
    for raw in choices:
        wake = sealed_wake(raw, stack.settings, display)
        ticket = await attach(stack.client, stack.settings, wake)
        if ticket.kind != "busy":
            return raw, wake, ticket
        display.note(f"{describe_holder(ticket)}; this demonstration takes another agent")
    raise Refused("the demo's agent is busy, and so is a new one: see the Web UI")


async def _follow_run(
    stack: Stack, display: Display, interrupts: Interrupts, store: "Transcripts", wake: Wake, ticket: Ticket
) -> Outcome:
    """Follow the run to its outcome; Ctrl-C detaches."""
    display.run(run_ref(stack.settings, wake.key, ticket.workflow_id, ticket.workflow_run_id), ticket.kind)
    followed = RunFollower(stack.client, ticket.handle(stack.client), wake.key, store, display, collect=True)
    try:
        return await interrupts.during(stack.guard(followed.follow_to_end()))
    except Interrupted:
        _print_how_to_resume(stack.plan, display, wake.key.run_id)
        raise


def _print_how_to_resume(plan: Plan, display: Display, run_id: str) -> None:
    what = "its container ends with the embedded cluster" if plan.embedded else "its container runs on"
    display.note(f"detached. The run stays open in Temporal, {what}, and the worker continues it when the stack is up:")
    real = f" --kubeconfig {plan.kubeconfig} --image {plan.image}" if plan.kubeconfig else ""
    display.note(f"    ./dev dev --state {shlex.quote(str(plan.state))}{real}")
    display.note(f"    source {shlex.quote(str(plan.state / ENVIRONMENT))} && agent-runs logs {run_id} --follow")
