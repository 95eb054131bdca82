"""The commands that bring up their own world: demo and dev. Each returns its exit code."""

import shlex
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from time import monotonic
from typing import Final

from cli.display import Display
from cli.follow import DETACHED, Followed, Interrupted, Interrupts
from cli.refusals import Refused
from cli.runs import busy, reference, requested, shown, transcripts
from client.attach import Ticket, attach
from contracts.request import RunRequest
from local import demo as example
from local.plan import Plan
from local.stack import Stack

ENVIRONMENT: Final = "environment.sh"
"""In the state folder: what other terminals source."""
PAPERCLIP: Final = {"AGENT_RUNS_PAPERCLIP_API_URL": "http://127.0.0.1:3100"}
"""Where Paperclip listens by default. In the embedded cluster it is right for agents, too: they share this loopback."""


async def demo(plan: Plan, display: Display, *, scenario: str, keep: bool) -> int:
    """One agent run from a real execution context, end to end, on this machine."""
    began = monotonic()
    with Interrupts.caught() as interrupts:
        try:
            async with _up(plan, display, interrupts) as stack:
                request, ticket = await _started(stack, display, scenario)
                code = await _watched(stack, display, interrupts, request, ticket)
                display.note(f"{monotonic() - began:.1f} s in all")
                if keep:
                    display.note("the stack stays up until Ctrl-C")
                    display.facts(stack.addresses.environment)
                    await stack.guard(interrupts.first.wait())
                    display.note("interrupted; the stack goes down")
        except Interrupted:
            display.note("interrupted; the stack goes down")
            return DETACHED
    return code


async def dev(plan: Plan, display: Display) -> int:
    """The whole stack, until Ctrl-C."""
    with Interrupts.caught() as interrupts:
        try:
            async with _up(plan, display, interrupts) as stack:
                addresses = stack.addresses
                environment = addresses.environment | (PAPERCLIP if plan.embedded else {})
                file = plan.state / ENVIRONMENT
                file.write_text(exports(environment))
                display.facts(
                    {"Web UI": addresses.web_ui, "scripted model": addresses.model, "logs": f"{plan.state}/log"}
                )
                display.note(f"for other terminals: source {file}")
                display.facts(environment)
                display.note("Ctrl-C ends it")
                await stack.guard(interrupts.first.wait())
                display.note("interrupted; the stack goes down")
        except Interrupted:
            display.note("interrupted")
    return 0


def exports(environment: dict[str, str]) -> str:
    """Lines for a shell to read."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())


@asynccontextmanager
async def _up(plan: Plan, display: Display, interrupts: Interrupts) -> AsyncIterator[Stack]:
    """The stack, ready. Interrupting its start ends it too."""
    async with AsyncExitStack() as parts:
        yield await interrupts.during(parts.enter_async_context(Stack.up(plan, display.note)))


async def _started(stack: Stack, display: Display, scenario: str) -> tuple[RunRequest, Ticket]:
    """A run of the demo's agent; of another agent while an earlier demonstration still holds that one."""
    for agent in (example.AGENT, str(uuid.uuid4())):
        raw = example.context(scenario, agent)
        example.furnish(stack.plan.data_root, raw)
        request = requested(raw, stack.settings, display)
        ticket = await attach(stack.client, stack.settings, request)
        if ticket.kind != "busy":
            return request, ticket
        display.note(f"{busy(ticket)}; this demonstration takes another agent")
    raise Refused("the demo's agent is busy, and so is a new one: look at the Web UI")


async def _watched(stack: Stack, display: Display, interrupts: Interrupts, request: RunRequest, ticket: Ticket) -> int:
    """Follow the run to its outcome; Ctrl-C detaches."""
    display.run(reference(stack.settings, request.key, ticket.workflow_id, ticket.workflow_run_id), ticket.kind)
    async with transcripts(stack.settings) as store:
        followed = Followed(ticket.handle(stack.client), request.key, store, display, collect=True)
        try:
            outcome = await interrupts.during(stack.guard(followed.to_the_end()))
        except Interrupted:
            _say_how_to_come_back(stack.plan, display, request.run_id)
            raise
        return shown(display, request.run_id, outcome)


def _say_how_to_come_back(plan: Plan, display: Display, run_id: str) -> None:
    what = "its container ends with the embedded cluster" if plan.embedded else "its container goes on"
    display.note(
        f"detached. The run stays open in Temporal, {what}, and the worker goes on with it when the stack is up:"
    )
    real = f" --kubeconfig {plan.kubeconfig} --image {plan.image}" if plan.kubeconfig else ""
    display.note(f"    agent-runs dev --state {shlex.quote(str(plan.state))}{real}")
    display.note(f"    source {shlex.quote(str(plan.state / ENVIRONMENT))} && agent-runs logs {run_id} --follow")
