"""Checks of an agent's configuration before anything is created: no Secret, no Job."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from agent_runs.agents.opencode.command import command_line
from agent_runs.contracts.errors import InvalidRequest, WorkspaceNotShared
from agent_runs.contracts.request import RunConfig, RunRequest
from agent_runs.job.data_volume import RunFolders
from agent_runs.job.placement import extra_annotations, extra_labels, node_selector, resources, tolerations
from agent_runs.job.policy import MAX_QUOTE, Policy


def check_config(config: RunConfig) -> None:
    """Build what later steps will build from the configuration, as far as that needs nothing else.

    Raises:
        InvalidRequest: names every wrong field and the remedy.
    """
    if problems := list(_problems(config)):
        raise InvalidRequest("; ".join(problems))


def _problems(config: RunConfig) -> Iterator[str]:
    model, variant, extra_args = config.model, config.variant, config.extra_args
    parts: tuple[Callable[[], object], ...] = (
        lambda: command_line(model=model, directory="/", title="check", variant=variant, extra_args=extra_args),
        lambda: resources(config.resources),
        lambda: extra_labels(config),
        lambda: extra_annotations(config),
        lambda: node_selector(config, {}),
        lambda: tolerations(config, ()),
    )
    for part in parts:
        try:
            part()
        except InvalidRequest as refused:
            yield refused.message


async def _outside_a_pod() -> str | None:
    return None


@dataclass(frozen=True)
class Checks:
    """What a worker checks of every configuration.

    Attributes:
        home: the namespace of Jobs whose agents name none.
        own_account: reads the ServiceAccount of the worker's own pod; None outside a pod.
        data_claim: reads the claim of the data volume that agents share; None: there is none, and what they write is
            lost with their pods.
    """

    policy: Policy = field(default_factory=Policy)
    home: str = "default"
    own_account: Callable[[], Awaitable[str | None]] = _outside_a_pod
    data_claim: Callable[[], Awaitable[str | None]] = _outside_a_pod

    async def check(self, config: RunConfig, folders: RunFolders | None = None) -> None:
        """Compare a configuration, and the folders of its run, with what a Job can be made of and with the policy.

        Raises:
            InvalidRequest: names every wrong field and the remedy.
            PolicyRefused: names every field whose value the policy does not allow.
            WorkspaceNotShared: the folders have a workspace, which would be lost with its pod.
            PodIntrospectionFailed: the worker's pod is none that could be read.
            ClusterUnavailable: the API server refused or timed out.
        """
        check_config(config)
        own_account = await self.own_account() if config.service_account_name else None
        data_claim = await self.data_claim() if config.extra_volumes else None
        self.policy.check(config, folders=folders, home=self.home, own_account=own_account, data_claim=data_claim)
        if folders is not None and folders.workspace_field is not None:
            await self.check_volume(config, f"{folders.workspace_field}: {folders.directory[:MAX_QUOTE]!r}")

    def bounded(self, request: RunRequest) -> RunRequest:
        """The request with the policy's budget where the agent's configuration has no limit of its own."""
        return request.model_copy(update={"config": self.policy.bounded(request.config)})

    async def check_volume(self, config: RunConfig, workspace: str) -> None:
        """Refuse a workspace that no volume keeps, unless the configuration says that it may be lost.

        Raises:
            WorkspaceNotShared: `workspace` in the message names it.
            PodIntrospectionFailed: the worker's pod is none that could be read.
            ClusterUnavailable: the API server refused or timed out.
        """
        if config.workspace == "shared" and await self.data_claim() is None:
            raise WorkspaceNotShared(
                f"{workspace} would be lost with the agent's pod: the worker shares no data volume with agents, and the"
                " agent's `workspace` is not `ephemeral`"
            )
