"""The settings that every process has, of a caller or of a worker: Temporal, sealing key, transcripts.

Read once from `AGENT_RUNS_*` variables and the standard ones of Temporal and OpenTelemetry, and passed down; an unknown
variable with our prefix stops the start-up, because it is a misspelt one.
"""

import json
import os
import re
from collections.abc import Mapping
from datetime import timedelta
from difflib import get_close_matches
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, ClassVar, Final, Self, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, ValidationInfo
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from agent_runs import contracts
from agent_runs.client.temporal_server import (
    HIGHEST_PORT,
    TemporalServer,
    UnusableProfile,
    misspelt_temporal_variable,
)
from agent_runs.client.tracing import UnusableTracing, is_traced
from agent_runs.contracts.syntax import is_absolute_url, matching, refuse, remedy_of
from agent_runs.files import DEFAULT_FOLDER

PREFIX: Final = "AGENT_RUNS_"
DEFAULT_STORE: Final = "transcripts.db"
"""File of the transcript store beside the sealing key, unless AGENT_RUNS_TRANSCRIPTS_URL names another store."""

_LISTEN_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):[0-9]{1,5}")
_PLAIN: Final = re.compile(r"[^\"'<>]*")
_HEADER: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}")

Network: TypeAlias = IPv4Network | IPv6Network


def _is_listen_address(value: str) -> bool:
    return _LISTEN_ADDRESS.fullmatch(value) is not None and int(value.rpartition(":")[2]) <= HIGHEST_PORT


def _networks(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return tuple(ip_network(text.strip()) for text in value.split(",") if text.strip())
    except ValueError:
        raise refuse("must be addresses or networks, separated by commas, such as 10.0.0.7,10.1.0.0/16") from None


def _with_the_header(value: tuple[Network, ...], info: ValidationInfo) -> tuple[Network, ...]:
    if bool(value) != (info.data.get("operator_header") is not None):
        raise refuse(
            "set it together with AGENT_RUNS_OPERATOR_HEADER: from any other address anybody could send the header"
        )
    return value


ListenAddress = Annotated[
    str, matching(_is_listen_address, "must be HOST:PORT with a port up to 65535, such as 127.0.0.1:8090")
]
HttpUrl = Annotated[
    str, matching(is_absolute_url, "must be an http or https URL without login and query, such as https://runs.example")
]
PageUrl = Annotated[
    HttpUrl,
    matching(_PLAIN.fullmatch, "must be an address that browsers open, without a quote or '<'"),
]
HeaderName = Annotated[str, matching(_HEADER.fullmatch, "must be the name of a header, such as X-Auth-Request-Email")]
Networks = Annotated[tuple[Network, ...], NoDecode, BeforeValidator(_networks), AfterValidator(_with_the_header)]

KNOWN: Final = frozenset(
    PREFIX + name for name in json.loads((Path(contracts.__file__).with_name("settings.json")).read_text())
)
"""The settings of every program: of callers, of workers, of the embedded stack and of the Paperclip plugin, which share
environments. Each ignores those of the others."""


STANDARD: Final = frozenset({"temporal", "traced"})
"""Fields that Temporal's and OpenTelemetry's own variables set, with rules of their own."""


_OF_A_SERVICE: Final = re.compile(
    rf"{PREFIX}(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_ADDRESS_OF_A_SERVICE: Final = re.compile(r"(tcp|udp|sctp)://\S+")


def is_of_a_service(name: str, value: str) -> bool:
    """Whether Kubernetes has set this variable, after a Service whose name begins as our prefix does.

    Source: https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables
    """
    return bool(_OF_A_SERVICE.fullmatch(name)) or (
        name.endswith("_PORT") and bool(_ADDRESS_OF_A_SERVICE.fullmatch(value))
    )


class SettingsError(Exception):
    """A setting is unknown or invalid. The text has one line per setting, and never quotes its value."""


class ClientSettings(BaseSettings):
    """The settings of a caller; a worker's are a superset.

    Attributes:
        temporal: the Temporal server, from `TEMPORAL_*` variables.
        traced: runs are traced, as `OTEL_*` variables say.
        names: the memo and the summary of a started run hold the names of its agent and task; without, its ids alone.
        web_ui: URL of Temporal's Web UI, for links to it.
        paperclip_pages_url: URL at which browsers open Paperclip, for links to its pages; None: no links.
        sealing_key_file: JWK of the sealing key; a worker creates a missing file, with mode 0600, unless `production`.
        transcripts_url: SQLAlchemy URL of the transcript store (`sqlite:///…`, `postgresql://…`); None: see
            `transcripts`.
        transcripts_connections: connections of one process to a store in PostgreSQL, at the most.
        transcripts_listen: HOST:PORT at which transcripts and the pages of runs are served; None: not served.
        transcripts_public_url: URL at which people and callers reach that service; the beginning of links to it.
        transcripts_key_file: JWK that signs those links; None: a file beside the sealing key. Created like that one.
        operator_token_file: file with the token of operators, who may open the list of runs and every run; None: nobody
            signs in with a token.
        operator_header: header in which an authenticating proxy names who is signed in; whoever has one is an operator.
        operator_proxies: addresses and networks of that proxy; the header counts from nowhere else.
        transcript_retention_days: transcripts are purged this many days after their last line, by workers; links
            live no longer; 0: never. Workspaces go with them.
        workspace_store: URL of the storage for workspaces that are carried: `file:///folder`, `s3://bucket/prefix`,
            `gs://…`, `az://…`, whose own variables have the credentials; None: pods share a volume with Paperclip.
        workspace_key_file: JWK (kty oct, 32 bytes) that encrypts what is stored there; None: the storage is trusted.
        workspace_max_mib: MiB of one agent's folder, at the most.
        workspace_max_files: files and folders in it, at the most.
        production: no key is created.
    """

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="forbid", hide_input_in_errors=True
    )

    temporal: TemporalServer = Field(default_factory=TemporalServer)
    traced: bool = False
    task_queue: str = "agent-runs"
    names: bool = True
    web_ui: str | None = None
    paperclip_pages_url: PageUrl | None = None
    sealing_key_file: Path = DEFAULT_FOLDER / "sealing-key.json"
    transcripts_url: str | None = None
    transcripts_connections: int = Field(default=10, ge=4, le=1000)
    transcripts_listen: ListenAddress | None = None
    transcripts_public_url: HttpUrl | None = None
    transcripts_key_file: Path | None = None
    operator_token_file: Path | None = None
    operator_header: HeaderName | None = None
    operator_proxies: Networks = Field(default=(), validate_default=True)
    transcript_retention_days: int = Field(default=30, ge=0, le=36_500)
    workspace_store: str | None = None
    workspace_key_file: Path | None = None
    workspace_max_mib: int = Field(default=4096, ge=1)
    workspace_max_files: int = Field(default=200_000, ge=1)
    production: bool = False

    @property
    def transcripts(self) -> str:
        """URL of the transcript store; by default a SQLite file beside the sealing key."""
        return self.transcripts_url or f"sqlite:///{self.sealing_key_file.with_name(DEFAULT_STORE)}"

    @property
    def transcripts_key(self) -> Path:
        return self.transcripts_key_file or self.sealing_key_file.with_name("transcripts-key.json")

    @property
    def transcript_retention(self) -> timedelta | None:
        """Time from a transcript's last line until it is purged; None: never."""
        return timedelta(days=self.transcript_retention_days) if self.transcript_retention_days else None

    @classmethod
    def read(cls, environment: Mapping[str, str] | None = None, **overrides: object) -> Self:
        """Read the settings from the environment; `overrides` replace values.

        Raises:
            SettingsError: a setting is unknown or invalid.
        """
        present = os.environ if environment is None else environment
        names = cls.model_fields.keys() - STANDARD
        unknown = sorted(
            name
            for name, value in present.items()
            if name.startswith(PREFIX) and name not in KNOWN and not is_of_a_service(name, value)
        )
        if unknown:
            raise SettingsError("\n".join(f"{name}: {_unknown(name)}" for name in unknown))
        if misspelt := [(name, right) for name in present if (right := misspelt_temporal_variable(name))]:
            raise SettingsError(
                "\n".join(f"{name}: no such variable; did you mean {right}?" for name, right in misspelt)
            )
        values: dict[str, object] = {
            name: present[f"{PREFIX}{name.upper()}"] for name in names if f"{PREFIX}{name.upper()}" in present
        }
        try:
            values["temporal"] = TemporalServer.read(present, default_file=environment is None)
            values["traced"] = is_traced(present)
            return cls.model_validate({**values, **overrides})
        except (UnusableProfile, UnusableTracing) as error:
            raise SettingsError(str(error)) from None
        except ValidationError as error:
            raise SettingsError(
                "\n".join(
                    f"{PREFIX}{'.'.join(str(part) for part in detail['loc']).upper()}: {remedy_of(detail)}"
                    for detail in error.errors(include_input=False, include_url=False)
                )
            ) from None


def _unknown(name: str) -> str:
    nearest = get_close_matches(name, KNOWN, 1, cutoff=0.8)
    return (
        f"no such setting; did you mean {nearest[0]}?" if nearest else "no such setting; correct its name or remove it"
    )
