"""Checks of an agent's configuration before anything is created: no Secret, no Job."""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from agent_runs.agents.opencode import VERSIONS
from agent_runs.agents.opencode.command import command_line
from agent_runs.agents.profile import OPENCODE_TITLE, AgentProfile
from agent_runs.contracts.errors import AgentVersionUnsupported, InvalidRequest, WorkspaceNotShared
from agent_runs.contracts.pod import DATA_DIRECTORY, HOME_DIRECTORY
from agent_runs.contracts.request import OPENCODE, RunConfig, RunRequest
from agent_runs.job.acp_plan import capabilities_of, profile_of
from agent_runs.job.data_volume import RunFolders
from agent_runs.job.placement import extra_annotations, extra_labels, node_selector, resources, tolerations
from agent_runs.job.pod_profile import PodOverrides
from agent_runs.job.policy import MAX_QUOTE, Policy
from agent_runs.pod.sidecar.drivers.versions import Windows, refusal
from agent_runs.transcript.pricing import PRICES


def check_config(config: RunConfig, agents: Mapping[str, AgentProfile] | None = None) -> None:
    """Build what later steps will build from the configuration, as far as that needs nothing else.

    Args:
        agents: the profiles of agents other than OpenCode; None: only the worker knows them.

    Raises:
        InvalidRequest: names every wrong field and the remedy.
    """
    if problems := list(_problems(config, agents)):
        raise InvalidRequest("; ".join(problems))


def _check_agent(config: RunConfig, agents: Mapping[str, AgentProfile] | None) -> None:
    if config.agent == OPENCODE:
        model, variant, extra_args = config.model, config.variant, config.extra_args
        command_line(model=model, directory="/", title="check", variant=variant, extra_args=extra_args)
    elif agents is not None:
        check_agent(config, profile_of(config, agents))


def _problems(config: RunConfig, agents: Mapping[str, AgentProfile] | None) -> Iterator[str]:
    parts: tuple[Callable[[], object], ...] = (
        lambda: _check_agent(config, agents),
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


SYSTEM_FOLDERS: Final = frozenset(
    {
        *("", "agent-run", "bin", "boot", "dev", "etc", "lib", "lib64", "opencode-db", "proc", "run", "runtime-cache"),
        *("sbin", "sys", "usr"),
    }
)
"""At the top of every image, or ours."""
UNMOVABLE: Final = frozenset({DATA_DIRECTORY, HOME_DIRECTORY, "/home", "/tmp", "/var", "/root"})  # noqa: S108 - a path in the pod


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
        agents: the profiles of agents other than OpenCode.
        overrides: the images of agents.
        carries: there is a store for workspaces that are carried.
    """

    policy: Policy = field(default_factory=Policy)
    home: str = "default"
    own_account: Callable[[], Awaitable[str | None]] = _outside_a_pod
    data_claim: Callable[[], Awaitable[str | None]] = _outside_a_pod
    agents: Mapping[str, AgentProfile] = field(default_factory=dict)
    overrides: PodOverrides = field(default_factory=PodOverrides)
    carries: bool = False

    async def check(self, config: RunConfig, folders: RunFolders | None = None) -> None:
        """Compare a configuration, and the folders of its run, with what a Job can be made of and with the policy.

        Raises:
            InvalidRequest: names every wrong field and the remedy.
            AgentVersionUnsupported: the tag of the image says so.
            PolicyRefused: names every field whose value the policy does not allow.
            WorkspaceNotShared: the folders have a workspace, which would be lost with its pod.
            PodIntrospectionFailed: the worker's pod cannot be read, or lacks a container.
            ClusterUnavailable: the API server refused or timed out.
        """
        check_config(config, self.agents)
        self._check_version(config, self.overrides.image_for(config) or "")
        own_account = await self.own_account() if config.service_account_name else None
        data_claim = await self.data_claim() if config.extra_volumes else None
        self.policy.check(config, folders=folders, home=self.home, own_account=own_account, data_claim=data_claim)
        if config.workspace == "carried":
            self._check_carried(folders)
        elif folders is not None and folders.workspace_field is not None:
            await self.check_volume(config, f"{folders.workspace_field}: {folders.directory[:MAX_QUOTE]!r}")

    def _check_carried(self, folders: RunFolders | None) -> None:
        if not self.carries:
            raise InvalidRequest(
                "config.workspace: this worker has no store for carried workspaces: set AGENT_RUNS_WORKSPACE_STORE on "
                "it, or choose another `workspace`"
            )
        if folders is None:
            return
        if folders.workspace_field is None:
            raise InvalidRequest(
                "config.workspace: Paperclip names no folder for this run, so none is carried: choose another one"
            )
        top = folders.directory.split("/")[1]
        if folders.directory in UNMOVABLE or top in SYSTEM_FOLDERS:
            raise InvalidRequest(
                f"{folders.workspace_field}: {folders.directory[:MAX_QUOTE]!r} is a folder that every pod has: move "
                "the project elsewhere"
            )

    def _check_version(self, config: RunConfig, image: str) -> None:
        """Refuse an image whose repository names the program alone, and whose tag a version that is not supported.

        Any other tag may be of the image itself; a program that says its version gets no prompt then.
        """
        windows: Windows
        if config.agent == OPENCODE:
            repository, title, windows = OPENCODE, OPENCODE_TITLE, VERSIONS
        else:
            profile = profile_of(config, self.agents)
            repository, title, windows = f"agent-{profile.name}", profile.title, profile.versions
        tag = re.fullmatch(rf"(?:.*/)?{repository}:(\d+\.\d+\.\d+)(?:@.*)?", image)
        if tag and (refused := refusal(title, tag[1], windows)):
            raise AgentVersionUnsupported(f"image {image[:MAX_QUOTE]}: {refused}")

    def bounded(self, request: RunRequest) -> RunRequest:
        """The request with the policy's budget where the agent's configuration has no limit of its own, and with notes
        about what of it the agent cannot do. It may cost no more than is left of the agent's budget in Paperclip. The
        configuration has been checked."""
        config, runtime = self.policy.bounded(request.config), request.runtime
        if left := request.budget_left_usd:
            config = config.model_copy(update={"max_cost_usd": min(config.max_cost_usd or left, left)})
        notes, can = self.warnings(config), capabilities_of(config, self.agents)
        session = runtime.session_params
        if session is not None and not can.resumes:
            runtime = runtime.model_copy(update={"session_params": None})
            notes = (*notes, f"session {session.session_id} is not resumed: {config.agent} cannot load sessions")
        changes = {"config": config, "runtime": runtime, "notes": (*request.notes, *notes), "capabilities": can}
        return request.model_copy(update=changes)

    def warnings(self, config: RunConfig) -> tuple[str, ...]:
        """What of a configuration its agent cannot do. The configuration has been checked."""
        return () if config.agent == OPENCODE else tuple(agent_warnings(config, profile_of(config, self.agents)))

    async def check_volume(self, config: RunConfig, workspace: str) -> None:
        """Refuse a workspace that no volume keeps, unless the configuration says that it may be lost.

        Raises:
            WorkspaceNotShared: `workspace` in the message names it.
            PodIntrospectionFailed: the worker's pod cannot be read, or lacks a container.
            ClusterUnavailable: the API server refused or timed out.
        """
        if config.workspace in ("auto", "shared") and await self.data_claim() is None:
            raise WorkspaceNotShared(
                f"{workspace} would be lost with the agent's pod: the worker shares no data volume with agents, and the"
                " agent's `workspace` is not `ephemeral`"
            )


OPENCODE_ONLY = ("transport", "opencode_features", "extra_args", "agent_db_mode")
"""Fields that say something to OpenCode alone, in the configuration's Python names."""


def check_agent(config: RunConfig, profile: AgentProfile) -> None:
    """Refuses what would be dangerous if it had no effect.

    Raises:
        InvalidRequest: names the field and the remedy.
    """
    name = config.model.partition("/")[2]
    if name.startswith("-") or "\0" in name:
        raise InvalidRequest("config.model: the name after the slash must not begin with '-' or contain NUL")
    if not config.dangerously_skip_permissions and profile.permissions.reject is None:
        raise InvalidRequest(
            f"config.dangerouslySkipPermissions: {profile.title} has no mode in which a tool that leaves the workspace "
            "is denied: set it to true, or choose another agent"
        )


def agent_warnings(config: RunConfig, profile: AgentProfile) -> Iterator[str]:
    """A sentence for each field of the configuration that has no effect, or less than it says."""
    fields, can = RunConfig.model_fields, profile.capabilities
    for name in OPENCODE_ONLY:
        if getattr(config, name) != fields[name].default:
            yield f"config.{fields[name].alias} has no effect: it is OpenCode's, and the agent is {profile.title}"
    if not can.rests and config.keep_warm_sec not in (0, fields["keep_warm_sec"].default):
        yield f"config.keepWarmSec has no effect: the profile of {profile.title} does not let its pod rest"
    if config.variant and not profile.takes_effort:
        yield f"config.variant has no effect: {profile.title} takes no effort"
    if profile.skills is None and config.skills == "folders" and config.paperclip_runtime_skills:
        yield f"Skills are not linked where {profile.title} looks for them: the prompt names their folders"
    if config.max_cost_usd and not can.cost and config.model not in PRICES:
        yield (
            f"config.maxCostUsd has no effect: {profile.title} reports no cost, and no price of {config.model} is "
            "known; set config.maxTokens"
        )
    if (config.max_cost_usd or config.max_tokens) and can.tokens is None:
        yield f"config.maxTokens and config.maxCostUsd have no effect: {profile.title} reports no tokens"
    elif (config.max_cost_usd or config.max_tokens) and can.tokens == "after each turn":
        yield (
            f"config.maxTokens and config.maxCostUsd end no turn of {profile.title}, which reports its tokens at the "
            "end of it; timeoutSec and maxSteps do"
        )
