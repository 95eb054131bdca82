"""OpenCode's configuration for the scripted model: this provider only, and nothing that looks for the network."""

from collections.abc import Sequence
from typing import Any, Final

from local.scripted_model.scenarios import SCENARIOS

API_KEY_VARIABLE: Final = "FAKE_LLM_API_KEY"

DECLARED: Final = (
    "error:400",
    "error:401",
    "error:403",
    "error:404",
    "error:413",
    "error:429:1",
    "error:429:3600",
    "error:500",
    "error:503",
    "error-html:401",
    "error-html:502",
    "flaky:429:1",
    "flaky:429:2:2",
    "flaky:500:1",
    "flaky:503:2",
    "context-overflow:1",
    "stream-no-finish:2",
    "drop:1",
    "drop-tool:1",
    "hang:2",
    "hang:10",
    "hang:600",
    "hang-stream:600",
    "slow:100:0.1",
    "slow-steps:5:1",
    "slow-steps:30:1",
    "tool-sleep:5",
    "tool-sleep:20",
    "tool-sleep:60",
    "text-big:2000000",
    "tool-big-input:1000000",
)
"""Scenes with arguments that are declared beside the plain names: OpenCode accepts declared models only."""


def opencode_config(
    base_url: str, extra: Sequence[str] = (), api_key: str | None = f"{{env:{API_KEY_VARIABLE}}}"
) -> dict[str, Any]:
    """A whole `opencode.json` that uses only this server. `extra` declares further scenes, such as `hang:7`."""
    return {
        "$schema": "https://opencode.ai/config.json",
        "autoupdate": False,
        "share": "disabled",
        "enabled_providers": ["fake"],
        "model": "fake/scenario/text",
        "small_model": "fake/aux/title",
        "lsp": False,
        "formatter": False,
        "provider": provider_block(base_url, extra, api_key),
    }


def provider_block(
    base_url: str, extra: Sequence[str] = (), api_key: str | None = f"{{env:{API_KEY_VARIABLE}}}"
) -> dict[str, Any]:
    """What belongs under `provider`. The package it names is inside the OpenCode binary, so nothing is downloaded."""
    options: dict[str, Any] = {"baseURL": base_url}
    if api_key is not None:
        options["apiKey"] = api_key
    models = {f"scenario/{name}": _model(name) for name in (*sorted(SCENARIOS), *DECLARED, *extra)}
    models["scenario/reasoning"]["variants"] = {"high": {"reasoningEffort": "high"}}
    models["aux/title"] = {
        "name": "Fake title model",
        "tool_call": False,
        "limit": {"context": 200_000, "output": 8_000},
    }
    return {
        "fake": {"npm": "@ai-sdk/openai-compatible", "name": "Fake LLM", "options": options, "models": models},
    }


def _model(name: str) -> dict[str, Any]:
    return {
        "name": f"Fake {name}",
        "reasoning": name.startswith(("reasoning", "tool-text-bash")),
        "tool_call": True,
        "limit": {"context": 200_000, "output": 32_000},
        "cost": {"input": 3, "output": 15, "cache_read": 0.3, "cache_write": 3.75},
    }
