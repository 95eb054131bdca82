"""What an agent's pod is made of, and what several parts of it have to agree on."""

import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from agent_runs.agents.profile import AgentProfile
from agent_runs.contracts.errors import InvalidRequest
from agent_runs.contracts.identity import RunKey
from agent_runs.contracts.messages import CreateJob
from agent_runs.contracts.pod import HOME_DIRECTORY
from agent_runs.contracts.request import OPENCODE, RunConfig
from agent_runs.job.data_volume import DataRules
from agent_runs.job.pod_profile import Inheritance, own_container

PYTHON_IMAGE: Final = "python:3.13-alpine@sha256:2d9aefe2fef018a7eb2c13064c89c71929800fd2e5dccdbf52ea5da5bb8d929a"
"""Of the sidecar, which holds the run's token, where a worker outside a pod has no setting for it."""


@dataclass(frozen=True)
class AgentPodSettings:
    """The worker's settings for every agent pod.

    Attributes:
        data: what agents get of the data volume.
        inheritance: what agents inherit from the worker's own pod.
        sidecar_image: image with python3 for the sidecar; None: that of the worker's own pod, or a public one of Python
            for a worker that is in none.
        page: returns the address of a run's page, without a token: it goes into histories.
        agents: the profiles of agents other than OpenCode, by name.
    """

    data: DataRules = field(default_factory=DataRules)
    init_image: str = "busybox:1.36"
    inheritance: Inheritance = field(default_factory=Inheritance)
    paperclip_api_url: str | None = None
    sidecar_image: str | None = None
    page: Callable[[RunKey], str] | None = None
    agents: Mapping[str, AgentProfile] = field(default_factory=dict)

    def completed(self, config: RunConfig, own_pod: Mapping[str, Any] | None) -> Self:
        return replace(
            self,
            paperclip_api_url=config.paperclip_api_url or self.paperclip_api_url,
            sidecar_image=self.sidecar_image or own_image(own_pod),
        )


def own_image(pod: Mapping[str, Any] | None) -> str | None:
    """The image of the worker's own container, which has Python; None outside a pod."""
    image = own_container(pod).get("image") if pod else None
    return image if isinstance(image, str) and image else None


@dataclass(frozen=True)
class ApiProxy:
    """How the agent reaches Paperclip through the sidecar.

    Attributes:
        upstream: Paperclip's address.
        run_id, token, tools_token: the identity that the proxy starts with.
        path_variables: the agent's variables that hold a path at Paperclip; the runner puts the proxy's address before
            it.
    """

    upstream: str
    run_id: str
    token: str = field(repr=False)
    tools_token: str | None = field(default=None, repr=False)
    path_variables: tuple[str, ...] = ()


@dataclass(frozen=True)
class Driven:
    """How the sidecar drives OpenCode's server, or an agent that speaks ACP.

    Attributes:
        script: the content of `serve.sh` or `agent_runs/pod/acp.sh`.
        turn: what the session is to do; see `agent_runs.pod.sidecar`. Only that of an ACP agent may have secrets, which
            are its MCP servers'.
        keep_warm: how many seconds the pod may rest after a turn; 0: it ends.
        files: what the script finds beside itself, by name.
    """

    script: bytes
    turn: Mapping[str, Any] = field(repr=False)
    keep_warm: int = 0
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class AgentPod:
    """One pod.

    Attributes:
        argv: the end of the runner's arguments, such as `-- opencode run --format json`.
        environment: what the agent gets, already merged, in order; secret.
        proxy: how the agent reaches Paperclip through the sidecar; None: it uses its own environment.
        driven: how the sidecar drives the agent; None: `argv` runs as it is.
        skills: keys of its Secret by the paths that their files have below `SKILLS_DIRECTORY`.
        carried: its Secret says where its workspace comes from and goes to.
    """

    input: CreateJob
    argv: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)
    settings: AgentPodSettings
    proxy: ApiProxy | None
    driven: Driven | None
    skills: Mapping[str, str] = field(default_factory=dict)
    carried: bool = False

    @property
    def secret(self) -> str:
        """The name of the Secret with its files and variables."""
        return self.input.attempt.run_secret_name


def is_opencode(input: CreateJob) -> bool:
    return input.config.agent == OPENCODE


def working_directory(input: CreateJob) -> str:
    """Return where OpenCode runs: the resumed session's directory, else the workspace, else `cwd`, else its home.

    Raises:
        InvalidRequest: it is no absolute path.
    """
    candidates = {
        "sessionParams.cwd": input.session.cwd if input.session else None,
        "paperclipWorkspace.cwd": input.request.context.paperclip_workspace.cwd,
        "cwd": input.config.cwd,
    }
    for name, path in candidates.items():
        if path and path.strip():
            if not path.strip().startswith("/") or "\0" in path:
                raise InvalidRequest(f"{name}: must be an absolute path in the pod, such as /paperclip/project")
            return posixpath.normpath(path.strip())
    return HOME_DIRECTORY


def literal(text: str) -> str:
    """Escape `text` so that Kubernetes passes it on unchanged: it reads `$(NAME)` as a variable and `$$` as `$`."""
    return text.replace("$", "$$")
