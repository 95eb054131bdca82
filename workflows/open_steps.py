"""Tells a workflow which of its activities are open, wherever they are started."""

from typing import Any, Protocol, runtime_checkable

from temporalio import workflow
from temporalio.worker import StartActivityInput, WorkflowInboundInterceptor, WorkflowOutboundInterceptor


@runtime_checkable
class Steps(Protocol):
    """A workflow that wants to know. Neither method may make commands."""

    def step_began(self, activity: str) -> None:
        """An activity of this type was started."""

    def step_ended(self, activity: str) -> None:
        """It has ended, whatever its end was."""


class OpenSteps(WorkflowInboundInterceptor):
    """Wraps the calls of a workflow."""

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        """Called once for each workflow."""
        super().init(_Outbound(outbound))


class _Outbound(WorkflowOutboundInterceptor):
    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:
        handle = super().start_activity(input)
        run = workflow.instance()
        if isinstance(run, Steps):
            run.step_began(input.activity)
            handle.add_done_callback(lambda _: run.step_ended(input.activity))
        return handle
