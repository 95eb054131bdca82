"""OpenCode's providers as Paperclip's own adapter for OpenCode gets them: `PAPERCLIP_OPENCODE_PROVIDERS`.

The variable holds a JSON object with what OpenCode's configuration has under `provider`. It is one of the agent's, or
of the environment of Paperclip's server, whose text the plugin passes on. Source: `@paperclipai/adapter-opencode-local`
2026.916.1, `runtime-config.js`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from pydantic import TypeAdapter, ValidationError

from agent_runs.contracts import opencode
from agent_runs.contracts.request import MAX_AREA, OPENCODE, JsonObject
from agent_runs.contracts.start import HostTexts

PROVIDERS_VARIABLE: Final = "PAPERCLIP_OPENCODE_PROVIDERS"
NO_OBJECT: Final = f'must be a JSON object of at most {MAX_AREA} characters, such as {{"gateway": {{"models": {{}}}}}}'
_OBJECT: Final = TypeAdapter[dict[str, Any]](JsonObject)


@dataclass(frozen=True)
class Gateways:
    """The providers, and path and remedy of each wrong part of the variable."""

    providers: Mapping[str, Any] = field(default_factory=dict, repr=False)
    problems: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, config: Mapping[str, Any], host: HostTexts) -> Self:
        """Those of an agent's configuration, as Paperclip gives it."""
        env = config.get("env")
        own = env.get(PROVIDERS_VARIABLE) if isinstance(env, dict) else None
        path, where, text = (
            (PROVIDERS_VARIABLE, "the environment of Paperclip's server", host.opencode_providers)
            if own is None
            else (f"config.env.{PROVIDERS_VARIABLE}", "the agent's configuration", own)
        )
        is_opencode = str(config.get("agent") or OPENCODE).strip() == OPENCODE
        if not is_opencode or not isinstance(text, str) or not text.strip():
            return cls()
        try:
            providers = _OBJECT.validate_python(text)
        except ValidationError:
            wrong = [("", NO_OBJECT)]
        else:
            wrong = [(each.removeprefix("provider"), remedy) for each, remedy in opencode.problems(_block(providers))]
            if not wrong:
                return cls(providers)
        return cls(problems=tuple((f"{path}{part}", f"{remedy}; correct it in {where}") for part, remedy in wrong))

    def merged(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """OpenCode's configuration with these providers, each in place of the configuration's own of the same name."""
        own = config.get("provider")
        both = {**(own if isinstance(own, Mapping) else {}), **self.providers}
        return {**config, **(_block(both) if both else {})}


def _block(providers: Mapping[str, Any]) -> dict[str, Any]:
    return {"provider": dict(providers)}
