"""Where Temporal is and which key seals: what every caller and the worker need to know.

Read once from `AGENT_RUNS_*` variables and passed down; a variable with this prefix that nobody knows stops
the start-up, because it is a misspelt one.
"""

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import ClassVar, Final, Self

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX: Final = "AGENT_RUNS_"

DEFAULT_INHERITANCE: Final = (
    *("ANTHROPIC_*", "OPENAI_*", "OPENROUTER_*", "GEMINI_*", "GOOGLE_*", "AZURE_*", "AWS_*", "MISTRAL_*", "GROQ_*"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    *("LANG", "LC_*", "TZ", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE"),
)
"""Model providers, proxies, locale, trust. Never everything: the worker's own secrets are in its environment too."""

_LISTEN: Final = r"^(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):[0-9]{1,5}$"
_URL: Final = r"^https?://[^\s?#]+$"

OTHER_READERS: Final = frozenset(
    f"{PREFIX}{name}" for name in ("OPENCODE", "SEALING_KEY", "ON_BUSY", "REPORT_AS", "BOARD_API_KEY", "RECONCILE")
)
"""Read by the local stack before any settings exist, and by Paperclip's plugin, which may share our environment."""


class SettingsError(Exception):
    """A setting is unknown or wrong. The text is one line per setting, fit for a terminal."""


class ClientSettings(BaseSettings):
    """How to reach Temporal, and with which key a caller seals.

    Attributes:
        sealing_key_file: JWK of the sealing key; made with mode 0600 when it is missing, unless `production`.
        transcripts_url: SQLAlchemy URL of the transcript store (`sqlite:///…`, `postgresql://…`).
        transcripts_listen: HOST:PORT where transcripts and the pages of runs are served; None: they are not.
        transcripts_public_url: where people and callers reach that service; links to it start so.
        transcripts_key_file: JWK that signs those links; None: beside the sealing key. Made like that one.
    """

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="forbid", hide_input_in_errors=True
    )

    temporal_address: str = "127.0.0.1:7233"
    temporal_namespace: str = "default"
    temporal_api_key: SecretStr | None = None
    temporal_tls: bool = False
    task_queue: str = "agent-runs"
    web_ui: str | None = None
    sealing_key_file: Path = Path.home() / ".agent-runs" / "sealing-key.json"
    transcripts_url: str | None = None
    transcripts_listen: str | None = Field(default=None, pattern=_LISTEN)
    transcripts_public_url: str | None = Field(default=None, pattern=_URL)
    transcripts_key_file: Path | None = None
    production: bool = False

    @property
    def transcripts(self) -> str:
        """URL of the transcript store; without a setting a SQLite file beside the sealing key."""
        return self.transcripts_url or f"sqlite+aiosqlite:///{self.sealing_key_file.with_name('transcripts.db')}"

    @property
    def transcripts_key(self) -> Path:
        """File of the key that signs links to runs."""
        return self.transcripts_key_file or self.sealing_key_file.with_name("transcripts-key.json")

    @classmethod
    def read(cls, environment: Mapping[str, str] | None = None, **given: object) -> Self:
        """Settings from the environment; `given` values win.

        Raises:
            SettingsError: an unknown or wrong setting, named, with what is expected; never its value.
        """
        present = os.environ if environment is None else environment
        unknown = sorted(name for name in present if name.startswith(PREFIX) and name not in _known() | OTHER_READERS)
        if unknown:
            raise SettingsError("\n".join(f"{name}: no such setting" for name in unknown))
        values = {
            name: present[f"{PREFIX}{name.upper()}"]
            for name in cls.model_fields
            if f"{PREFIX}{name.upper()}" in present
        }
        try:
            return cls.model_validate({**values, **given})
        except ValidationError as error:
            raise SettingsError(
                "\n".join(
                    f"{PREFIX}{'.'.join(str(part) for part in wrong['loc']).upper()}: {wrong['msg']}"
                    for wrong in error.errors(include_input=False, include_url=False)
                )
            ) from None


def _known() -> frozenset[str]:
    """A process may read only a part of the settings; those of the other parts are not misspelt."""
    kinds: list[type[ClientSettings]] = [ClientSettings, *ClientSettings.__subclasses__()]
    return frozenset(f"{PREFIX}{name.upper()}" for kind in kinds for name in kind.model_fields)


class WorkerSettings(ClientSettings):
    """What only the worker needs: the cluster, what agent pods look like, its own limits.

    Attributes:
        kubeconfig: file of the cluster; None means the cluster the worker runs in.
        namespace: where Jobs go unless an agent's configuration names another; None: the worker's own.
        image: image of agent pods; None: that of the worker's own pod.
        init_image: image of the init container; it must have `sh` and `cp`, and should be a busybox.
        data_claim: PersistentVolumeClaim with Paperclip's data; None: that of the worker's own pod.
        data_root: where the worker itself sees what pods see at /paperclip.
        inherit_env: glob patterns of literal environment variables of the worker's own pod that agents inherit.
        paperclip_api_url: Paperclip as pods reach it; an agent's configuration may name another address.
        api_proxy_image: image with python3 for the container through which an agent speaks to Paperclip; None: that of
            the worker's own pod; empty: no such container, and the agent has its token in its environment.
        opencode_config: JSON file merged into every agent's OpenCode configuration (providers, mostly).
        max_runs: runs one worker follows at once.
        transcript_retention_days: transcripts go so long after their last line; 0 keeps them for ever.
        health_listen: HOST:PORT where probes ask (`/readyz`, `/livez`); None: nowhere.
        metrics_listen: IP:PORT where the SDK's metrics are served for Prometheus (`/metrics`); None: nowhere.
    """

    kubeconfig: Path | None = None
    kube_context: str | None = None
    namespace: str | None = None
    image: str | None = None
    init_image: str = "busybox:1.36"
    data_claim: str | None = None
    data_root: Path = Path("/paperclip")
    inherit_env: tuple[str, ...] = DEFAULT_INHERITANCE
    paperclip_api_url: str | None = None
    api_proxy_image: str | None = None
    opencode_config: Path | None = None
    max_runs: int = Field(default=500, ge=1)
    transcript_retention_days: int = Field(default=30, ge=0, le=36_500)
    health_listen: str | None = Field(default=None, pattern=_LISTEN)
    metrics_listen: str | None = Field(default=None, pattern=_LISTEN)

    @property
    def transcript_retention(self) -> timedelta | None:
        """How long transcripts are kept; None: for ever."""
        return timedelta(days=self.transcript_retention_days) if self.transcript_retention_days else None
