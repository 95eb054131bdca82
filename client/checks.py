"""What can be known to fail is refused here, before anything exists: no workflow, no Secret, no Job."""

from cluster.placement import extra_labels, node_selector, resources, tolerations
from contracts.request import RunRequest
from opencode.command import command_line


def check(request: RunRequest) -> None:
    """Builds what the worker will build from this request, as far as that needs nothing but the request.

    Raises:
        InvalidRequest: names the field and the remedy.
    """
    config = request.config
    command_line(model=config.model, directory="/", title="check", variant=config.variant, extra_args=config.extra_args)
    resources(config.resources)
    extra_labels(config)
    node_selector(config, {})
    tolerations(config, ())
