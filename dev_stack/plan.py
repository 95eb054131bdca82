"""The plan of a local stack: ports, folders, which cluster."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent_runs.contracts.request import OPENCODE

ROOT: Final = Path(__file__).parents[1]
CLAIM: Final = "paperclip"
"""The embedded cluster's claim for Paperclip's data volume."""
NAMESPACE: Final = "default"


def cache_folder() -> Path:
    """Where downloads and state folders are: `.cache` of the checkout, or the user's own for an installed program."""
    return ROOT / ".cache" if (ROOT / "pyproject.toml").exists() else Path.home() / ".cache" / "agent-runs"


@dataclass(frozen=True)
class Ports:
    """Ports on loopback, 0 for any free one: that of the last start if possible."""

    temporal: int = 0
    web_ui: int = 0
    temporal_http: int = 0
    temporal_metrics: int = 0
    cluster: int = 0
    model: int = 0
    pages: int = 0


FIXED: Final = Ports(temporal=7233, web_ui=8233, cluster=7443, model=7931, pages=8090)
"""The default ports of `dev`, so that settings of other programs stay right."""


@dataclass(frozen=True)
class Plan:
    """What to start.

    Attributes:
        state: folder for everything that must survive.
        kubeconfig: a real cluster to use instead of the embedded one; then `image` names the agents' image.
        model_host: address of this machine that pods of the real cluster reach; None finds it out.
        agent: whose program runs; its image on a real cluster is `image`.
        opencode: the version of OpenCode, its first number.
        paperclip_api_url: address of Paperclip for agents; None leaves it to whoever starts a run. Without any an agent
            has its token in its environment, so its pod never rests.
    """

    state: Path
    ports: Ports = Ports()
    kubeconfig: Path | None = None
    image: str | None = None
    model_host: str | None = None
    paperclip_api_url: str | None = None
    agent: str = OPENCODE
    opencode: int = 1

    @property
    def embedded(self) -> bool:
        """Whether the cluster is our own."""
        return self.kubeconfig is None

    @property
    def data_root(self) -> Path:
        """Where this machine sees what pods of the embedded cluster see at /paperclip."""
        return self.state / "cluster" / "claims" / NAMESPACE / CLAIM if self.embedded else self.state / "data"
