"""OpenCode's runtime configuration and fixed environment.

The configuration goes into a file of its own (`OPENCODE_CONFIG`), which is made per attempt and never shared. Without a
model and enabled providers the prompt would go to an outside service.

What agent and operator configure is merged into it (`agent_runs.agents.opencode.merge`). OpenCode merges its sources
deeply: global configuration, this file, then OPENCODE_CONFIG_CONTENT. Our keys win over a global file key by key; the
`OVERRIDING_VARIABLES` would win over ours and so must not reach the pod.
Source: OpenCode 1.18.33, observed; opencode.ai/docs/config and /docs/permissions.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

from agent_runs.agents.opencode.switches import switched_configuration, switched_variables
from agent_runs.contracts.request import OpenCodeFeature

CONFIG_SCHEMA: Final = "https://opencode.ai/config.json"
HEADER_TIMEOUT: Final = timedelta(seconds=120)
"""Until a provider's response headers. OpenCode tries six times, so its own 300 s can mean half an hour of silence."""
CHUNK_TIMEOUT: Final = timedelta(seconds=240)
"""Between two pieces of a model's stream: long enough for reasoning that is not streamed."""

OVERRIDING_VARIABLES: Final = frozenset(
    {
        "OPENCODE_CONFIG_CONTENT",
        "OPENCODE_CONFIG_DIR",
        "OPENCODE_PERMISSION",
        "OPENCODE_SERVER_PASSWORD",
        "OPENCODE_SERVER_USERNAME",
    }
)
"""Variables that change configuration behind our back, or make every session "not found"."""


def runtime_config(
    *,
    model: str,
    small_model: str | None,
    mcp_servers: Mapping[str, Any],
    provider_config: Mapping[str, Any],
    more_models: Iterable[str],
    features: Collection[OpenCodeFeature],
) -> dict[str, Any]:
    """Our part of the configuration of one attempt but for the permissions. It may hold secrets if `mcp_servers` does.

    Args:
        model: `<provider>/<model>`.
        small_model: for titles and summaries; the model itself when absent.
        mcp_servers: OpenCode's or Claude's spelling; see `translate_mcp_servers`.
        provider_config: OpenCode's `provider` block: own base URLs, models, `apiKey` as `{file:…}` or `{env:…}`.
            Its own values win; time-outs are added where it has none.
        more_models: whose providers are enabled, too.
        features: what the agent's configuration switches on.
    """
    small = small_model or model
    providers = list(dict.fromkeys(name.partition("/")[0] for name in (model, small, *more_models)))
    config: dict[str, Any] = {
        "$schema": CONFIG_SCHEMA,
        "model": model,
        "small_model": small,
        "enabled_providers": providers,
        "provider": deep_merge({name: _provider_timeouts() for name in providers}, provider_config),
        **switched_configuration(features),
    }
    servers, _ = translate_mcp_servers(mcp_servers)
    return {**config, "mcp": servers} if servers else config


def translate_mcp_servers(servers: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """MCP servers in OpenCode's spelling, and the names of those that could not be understood.

    OpenCode's own `type: local | remote` passes verbatim; Claude's `command` with `args` and `env` becomes `local`, a
    `url` with `headers` becomes `remote`.
    """
    translated = {name: _mcp_server(server) for name, server in servers.items()}
    known = {name: server for name, server in translated.items() if server is not None}
    return known, tuple(name for name in translated if name not in known)


def environment(
    *,
    config_file: str,
    directory: str,
    plugins: bool = False,
    features: Collection[OpenCodeFeature] = (),
) -> dict[str, str]:
    """The fixed variables of OpenCode's process.

    PWD is what OpenCode takes for its working directory; a plain change of directory does not set it.
    """
    return {
        "OPENCODE_CONFIG": config_file,
        "PWD": directory,
        **switched_variables(features, plugins=plugins),
    }


def deep_merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Objects are merged key by key, everything else (arrays too) is replaced by `over`."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        result[key] = deep_merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return result


def _provider_timeouts() -> dict[str, Any]:
    return {"options": {"headerTimeout": _milliseconds(HEADER_TIMEOUT), "chunkTimeout": _milliseconds(CHUNK_TIMEOUT)}}


def _milliseconds(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)


def _mcp_server(server: object) -> dict[str, Any] | None:
    if not isinstance(server, Mapping):
        return None
    if server.get("type") in {"local", "remote"}:
        return dict(server)
    command, url = server.get("command"), server.get("url")
    if isinstance(command, str) and command:
        arguments = server.get("args")
        words = [word for word in arguments if isinstance(word, str)] if isinstance(arguments, list | tuple) else []
        return {"type": "local", "command": [command, *words]} | _pairs("environment", server.get("env"))
    if isinstance(url, str) and url:
        return {"type": "remote", "url": url} | _pairs("headers", server.get("headers"))
    return None


def _pairs(key: str, value: object) -> dict[str, dict[str, str]]:
    if not isinstance(value, Mapping):
        return {}
    pairs = {name: text for name, text in value.items() if isinstance(name, str) and isinstance(text, str)}
    return {key: pairs} if pairs else {}
