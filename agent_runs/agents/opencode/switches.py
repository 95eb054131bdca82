"""What runs switch off in OpenCode, why, and which of it an agent's configuration may switch on again.

Source: OpenCode 1.18.33, observed.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from agent_runs.contracts.request import OpenCodeFeature


@dataclass(frozen=True)
class Switch:
    """Something of OpenCode that runs switch off.

    Attributes:
        name: a key of OpenCode's configuration, or a variable.
        off: its value then.
        reason: why it is off.
        feature: with which an agent's configuration switches it on; None: nothing does.
    """

    name: str
    off: Any
    reason: str
    feature: OpenCodeFeature | None = None


CONFIGURATION_SWITCHES: Final = (
    Switch("share", "disabled", "sessions must not become public pages"),
    Switch("autoupdate", False, "a run uses the OpenCode of the agents' image"),
    Switch("snapshot", False, "git adds the whole workspace at each step, which may take minutes", "snapshot"),
    Switch("lsp", False, "language servers take time and memory in every pod", "lsp"),
    Switch("formatter", False, "a formatter changes more of a file than the agent knows of", "formatter"),
)
VARIABLE_SWITCHES: Final = (
    Switch("OPENCODE_DISABLE_AUTOUPDATE", "1", "as autoupdate"),
    Switch("OPENCODE_DISABLE_DEFAULT_PLUGINS", "1", "they are logins with a browser, and nobody is there"),
    Switch("OPENCODE_DISABLE_LSP_DOWNLOAD", "1", "programs come with the agents' image, not from the internet"),
    Switch("OPENCODE_DISABLE_MODELS_FETCH", "1", "no start should depend on an outside service's list of models"),
    Switch(
        "OPENCODE_DISABLE_PROJECT_CONFIG",
        "1",
        "a repository's opencode.json has priority over the run's: it may send prompts and the provider's key "
        "elsewhere, start MCP servers, and ask for permissions, which ends the run. Its AGENTS.md is not read either",
        "projectConfig",
    ),
    Switch("OPENCODE_DISABLE_SHARE", "1", "as share"),
    Switch("OPENCODE_DISABLE_TERMINAL_TITLE", "1", "there is no terminal"),
    Switch(
        "OPENCODE_PURE",
        "1",
        "no plugins of a configuration. Those in a repository's folder .opencode/plugin run all the same, whatever a "
        "run switches off",
    ),
)


def switched_configuration(features: Collection[OpenCodeFeature] = ()) -> dict[str, Any]:
    """Keys of OpenCode's configuration; what is among the features is on."""
    return {each.name: True if each.feature in features else each.off for each in CONFIGURATION_SWITCHES}


def switched_variables(features: Collection[OpenCodeFeature] = (), *, plugins: bool = False) -> dict[str, str]:
    """Variables of OpenCode's process; what is among the features is not disabled, whoever else sets the variable."""
    return {
        each.name: "0" if each.feature in features else each.off
        for each in VARIABLE_SWITCHES
        if not (plugins and each.name == "OPENCODE_PURE")
    }
