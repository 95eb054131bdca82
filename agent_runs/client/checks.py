"""Checks of a request before anything is created: no workflow, no Secret, no Job."""

from agent_runs.agents.opencode.command import command_line
from agent_runs.contracts.request import RunRequest
from agent_runs.job.placement import extra_labels, node_selector, resources, tolerations


def check_request(request: RunRequest) -> None:
    """Build what the worker will build from this request, as far as that needs only the request.

    Raises:
        InvalidRequest: names the field and the remedy.
    """
    config = request.config
    command_line(model=config.model, directory="/", title="check", variant=config.variant, extra_args=config.extra_args)
    resources(config.resources)
    extra_labels(config)
    node_selector(config, {})
    tolerations(config, ())
