"""Where Temporal is and which key seals: what every caller and the worker need to know.

Read once from `AGENT_RUNS_*` variables and passed down; a variable with this prefix that nobody knows stops
the start-up, because it is a misspelt one.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final, Self

from pydantic import SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX: Final = "AGENT_RUNS_"


class SettingsError(Exception):
    """A setting is unknown or wrong. The text is one line per setting, fit for a terminal."""


class ClientSettings(BaseSettings):
    """How to reach Temporal, and with which key a caller seals.

    Attributes:
        sealing_key_file: JWK of the sealing key; made with mode 0600 when it is missing, unless `production`.
        transcripts_url: SQLAlchemy URL of the transcript store (`sqlite+aiosqlite:///…`).
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
    production: bool = False

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


OTHER_READERS: Final = frozenset({f"{PREFIX}OPENCODE"})
"""Read by the local stack before any settings exist."""


def _known() -> frozenset[str]:
    """A process may read only a part of the settings; those of the other parts are not misspelt."""
    kinds = [ClientSettings, *ClientSettings.__subclasses__()]
    return frozenset(f"{PREFIX}{name.upper()}" for kind in kinds for name in kind.model_fields)
