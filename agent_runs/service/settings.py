"""The settings of a worker process."""

from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo
from pydantic_settings import NoDecode

from agent_runs.client.settings import ClientSettings, HttpUrl, ListenAddress
from agent_runs.contracts.syntax import AGENT_NAME, DNS_LABEL, is_label_key, is_label_value, matching, refuse

DEFAULT_INHERITANCE: Final = (
    *("ANTHROPIC_*", "OPENAI_*", "OPENROUTER_*", "GEMINI_*", "GOOGLE_*", "AZURE_*", "AWS_*", "MISTRAL_*", "GROQ_*"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    *("LANG", "LC_*", "TZ", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE"),
)
"""Model providers, proxies, locale, trusted certificates. Not all variables: the worker's secrets are among them."""


def _patterns(value: object) -> object:
    """The patterns in a variable, which are separated by commas."""
    return tuple(filter(None, map(str.strip, value.split(",")))) if isinstance(value, str) else value


def _selector(value: str) -> str:
    """Labels in the form of a selector; only equality, because one Deployment is meant."""
    pairs = [pair.strip().partition("=") for pair in value.split(",")]
    if not all(equals and is_label_key(key) and is_label_value(label) for key, equals, label in pairs):
        raise refuse("must be labels KEY=VALUE, separated by commas, such as app.kubernetes.io/name=paperclip")
    return ",".join("".join(pair) for pair in pairs)


def _images(value: object) -> object:
    """NAME=IMAGE, separated by commas."""
    if not isinstance(value, str):
        return value
    pairs = [each.strip().partition("=") for each in value.split(",") if each.strip()]
    if not all(equals and AGENT_NAME.fullmatch(name.strip()) and image.strip() for name, equals, image in pairs):
        raise refuse("must be NAME=IMAGE, separated by commas, such as claude=registry.example/agent-claude:1")
    return {name.strip(): image.strip() for name, _, image in pairs}


def _of_the_deployment(value: str | None, info: ValidationInfo) -> str | None:
    if value is not None and info.data.get("inherit_deployment", "") is None:
        raise refuse("has no effect unless AGENT_RUNS_INHERIT_DEPLOYMENT is set")
    return value


def _of_the_store(value: str | None, info: ValidationInfo) -> str | None:
    if value is None and info.data.get("workspace_store") is not None:
        raise refuse("set it together with AGENT_RUNS_WORKSPACE_STORE: pods send their files there")
    return value


Name = Annotated[str, matching(DNS_LABEL.fullmatch, "must be lowercase letters, digits and '-', 63 at most")]
_EmptyIsAbsent: Final = BeforeValidator(lambda value: value or None)
OfTheDeployment = Annotated[Name | None, AfterValidator(_of_the_deployment)]
Selector = Annotated[str, AfterValidator(_selector)]
Images = Annotated[dict[str, str], NoDecode, BeforeValidator(_images)]
Patterns = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_patterns)]


class WorkerSettings(ClientSettings):
    """The cluster, the agent pods, and the limits of the worker, in addition to a caller's settings.

    Attributes:
        kubeconfig: kubeconfig file; None: the cluster in which the worker runs.
        kube_context: context in that file; None: its current one.
        namespace: namespace of the Jobs, unless an agent's configuration names another; None: the worker's own.
        image: image of pods with OpenCode; None: that of the worker's own pod.
        agents: folder with profiles of further agents, NAME.yaml (docs/agents.md); None: those of this program only.
        agent_images: images of agents other than OpenCode, NAME=IMAGE, separated by commas.
        init_image: image of the init container; it must have `sh` and `cp`, and should be a busybox.
        data_claim: PersistentVolumeClaim with Paperclip's data; None: that of the worker's own pod.
        inherit_env: glob patterns (separated by commas in the variable) of environment variables of the own pod
            that agents inherit, literal ones and those that refer to a key of a Secret or ConfigMap.
        inherit_env_from: the same for the names of Secrets and ConfigMaps in its `envFrom`.
        inherit_mounts: the same for the paths at which it mounts Secrets.
        inherit_deployment: labels of Paperclip's Deployment (`KEY=VALUE`, separated by commas), from whose pod template
            agents inherit; None: from the worker's own pod.
        inherit_namespace: namespace of that Deployment; None: the worker's own.
        inherit_container: its container from which agents inherit; None: it has one only.
        paperclip_api_url: URL at which pods reach Paperclip; an agent's configuration may name another.
        sidecar_image: image with python3 (3.9 or later) for the sidecar of agent pods; None: that of the worker's own
            pod, or a public one of Python for a worker that is in none.
        opencode_config: JSON file merged into every agent's OpenCode configuration (providers, mostly).
        policy: YAML file of what agent configurations may choose; None: the defaults of docs/policy.md.
        max_runs: runs that this worker follows at the same time.
        max_output_mib: MiB of output stored for one run; each line counts as its text plus 200 bytes. Then its
            agent is stopped (`output_quota_exceeded`).
        workspace_listen: HOST:PORT at which workspaces are served and nothing else, so that a NetworkPolicy can allow
            it to pods; None: only where transcripts are.
        workspace_url: URL at which pods send and read carried workspaces.
        health_listen: HOST:PORT of the probes (`/readyz`, `/livez`); None: not served.
        metrics_listen: IP:PORT of our metrics and the SDK's for Prometheus (`/metrics`); None: not served.
    """

    kubeconfig: Path | None = None
    kube_context: str | None = None
    namespace: Annotated[Name | None, _EmptyIsAbsent] = None
    image: str | None = None
    agents: Path | None = None
    agent_images: Images = Field(default_factory=dict)
    init_image: str = "busybox:1.36"
    data_claim: str | None = None
    inherit_env: Patterns = DEFAULT_INHERITANCE
    inherit_env_from: Patterns = ()
    inherit_mounts: Patterns = ()
    inherit_deployment: Selector | None = None
    inherit_namespace: OfTheDeployment = None
    inherit_container: OfTheDeployment = None
    paperclip_api_url: Annotated[HttpUrl | None, _EmptyIsAbsent] = None
    sidecar_image: str | None = None
    opencode_config: Path | None = None
    policy: Path | None = None
    max_runs: int = Field(default=500, ge=1)
    max_output_mib: int = Field(default=1024, ge=1)
    workspace_listen: ListenAddress | None = None
    workspace_url: Annotated[HttpUrl | None, AfterValidator(_of_the_store)] = Field(default=None, validate_default=True)
    health_listen: ListenAddress | None = None
    metrics_listen: ListenAddress | None = None
