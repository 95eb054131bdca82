"""How each agent is started offline, with the scripted model as its provider: files, variables, arguments."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dev_stack.agent_programs import PROGRAMS, node

KEY: Final = "canary-key"
"""The provider's key, which must appear in no file and no line."""


@dataclass(frozen=True)
class Launch:
    """What a process of an agent is started with."""

    command: list[str]
    environment: dict[str, str]


@dataclass(frozen=True)
class _Setup:
    arguments: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


def launch(name: str, installed: Path, home: Path, model: str, origin: str, *, ask: bool = False) -> Launch:
    """Write the agent's configuration below `home` and return how to start it.

    Args:
        name: of `PROGRAMS`.
        installed: what `ensure_program` returned.
        home: an existing folder; sessions are kept there.
        model: such as `scenario/text`.
        origin: the scripted model's.
        ask: in the agent's mode that asks for permission.
    """
    setup = _SETUPS[name](installed, model, origin)
    if ask:
        setup = _asking(name, setup)
    for path, text in setup.files.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text)
    base = {"HOME": str(home), "PATH": f"{node().parent}:{os.defpath}", "LANG": "C.UTF-8", "TMPDIR": str(home)}
    return Launch([*PROGRAMS[name].command(installed), *setup.arguments], base | setup.environment)


def _claude(_installed: Path, model: str, origin: str) -> _Setup:
    variables = {
        "ANTHROPIC_BASE_URL": origin,
        "ANTHROPIC_API_KEY": KEY,
        "ANTHROPIC_MODEL": model,
        "ANTHROPIC_SMALL_FAST_MODEL": "aux/title",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_ENABLE_PROMPT_SUGGESTION": "false",
        "CLAUDE_CODE_MAX_RETRIES": "2",
        "DISABLE_AUTOUPDATER": "1",
        "IS_SANDBOX": "1",  # else root may not bypass permissions
    }
    return _Setup([], variables, {".claude/settings.json": _json(permissions={"defaultMode": "bypassPermissions"})})


def _codex(_installed: Path, model: str, origin: str) -> _Setup:
    config = f"""
model = "{model}"
model_provider = "scripted"
check_for_update_on_startup = false
cli_auth_credentials_store = "ephemeral"
[features]
shell_snapshot = false
[model_providers.scripted]
name = "scripted"
base_url = "{origin}/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
"""
    variables = {
        "OPENAI_API_KEY": KEY,
        "INITIAL_AGENT_MODE": "agent-full-access",
        "CODEX_ACP_PROMPT_SUGGESTIONS": "false",
    }
    return _Setup([], variables, {".codex/config.toml": config})


def _gemini(_installed: Path, model: str, origin: str) -> _Setup:
    variables = {
        "GEMINI_API_KEY": KEY,
        "GOOGLE_GEMINI_BASE_URL": origin,
        "GEMINI_CLI_NO_RELAUNCH": "true",
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
    }
    settings = _json(
        general={"enableAutoUpdate": False, "sessionRetention": {"enabled": False}},
        privacy={"usageStatisticsEnabled": False},
        security={"auth": {"selectedType": "gemini-api-key"}},
    )
    return _Setup(["--acp", "-m", model, "--approval-mode", "yolo"], variables, {".gemini/settings.json": settings})


def _qwen(_installed: Path, model: str, origin: str) -> _Setup:
    variables = {
        "OPENAI_API_KEY": KEY,
        "OPENAI_BASE_URL": f"{origin}/v1",
        "OPENAI_MODEL": model,
        "QWEN_CODE_NO_RELAUNCH": "true",
        "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",
        "QWEN_DISABLE_AUTO_TITLE": "1",
    }
    settings = _json(
        general={"enableAutoUpdate": False},
        memory={"enableManagedAutoMemory": False, "enableManagedAutoDream": False},
        privacy={"usageStatisticsEnabled": False},
        ui={"enableFollowupSuggestions": False},
    )
    return _Setup(["--acp", "-m", model, "--approval-mode", "yolo"], variables, {".qwen/settings.json": settings})


def _pi(installed: Path, model: str, origin: str) -> _Setup:
    prices = {"input": 3, "output": 15, "cacheRead": 0.3, "cacheWrite": 3.75}
    declared = {"id": model, "name": model, "reasoning": False, "input": ["text"], "contextWindow": 200_000,
                "maxTokens": 32_000, "cost": prices}  # fmt: skip
    provider = {"baseUrl": f"{origin}/v1", "api": "openai-completions", "apiKey": "MODEL_KEY", "models": [declared]}
    files = {
        ".pi/agent/models.json": _json(providers={"scripted": provider}),
        ".pi/agent/settings.json": _json(defaultProvider="scripted", defaultModel=model, quietStartup=True),
    }
    command = str(installed / "node_modules" / ".bin" / "pi")
    return _Setup([], {"MODEL_KEY": KEY, "PI_OFFLINE": "1", "PI_ACP_PI_COMMAND": command}, files)


def _asking(name: str, setup: _Setup) -> _Setup:
    """The same, with a permission for each tool that leaves the workspace."""
    old, new = {
        "claude": ("bypassPermissions", "default"),
        "codex": ("agent-full-access", "read-only"),
        "gemini": ("yolo", "default"),
        "qwen": ("yolo", "default"),
        "pi": ("", ""),
    }[name]
    environment, files = (
        {key: value.replace(old, new) for key, value in texts.items()} for texts in (setup.environment, setup.files)
    )
    return _Setup([each.replace(old, new) for each in setup.arguments], environment, files)


def _json(**values: Any) -> str:
    return json.dumps(values, indent=1)


_SETUPS: Final[dict[str, Callable[[Path, str, str], _Setup]]] = {
    "claude": _claude,
    "codex": _codex,
    "gemini": _gemini,
    "qwen": _qwen,
    "pi": _pi,
}
