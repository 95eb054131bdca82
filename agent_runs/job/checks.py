"""Checks of an agent's configuration before anything is created: no Secret, no Job."""

from agent_runs.agents.opencode.command import command_line
from agent_runs.contracts.request import RunConfig
from agent_runs.job.placement import extra_labels, node_selector, resources, tolerations


def check_config(config: RunConfig) -> None:
    """Build what later steps will build from the configuration, as far as that needs nothing else.

    Raises:
        InvalidRequest: names the field and the remedy.
    """
    command_line(model=config.model, directory="/", title="check", variant=config.variant, extra_args=config.extra_args)
    resources(config.resources)
    extra_labels(config)
    node_selector(config, {})
    tolerations(config, ())
