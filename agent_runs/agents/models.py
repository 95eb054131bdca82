"""Models that people are offered, with the agents that take them: suggestions, because accounts and gateways differ.

`python -m agent_runs.agents.models` rewrites the committed list, which Paperclip's plugin shows; a test keeps it fresh.
Pure but for that.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from agent_runs.agents.profile import OPENCODE_TITLE, AgentProfile, load

LIST_FILE: Final = Path(__file__).with_name("models.json")
OPENCODE_MODELS: Final = (
    *("anthropic/claude-opus-4-7", "anthropic/claude-sonnet-4-6", "anthropic/claude-haiku-4-5"),
    *("openai/gpt-4o", "google/gemini-2.5-pro", "google/gemini-2.5-flash"),
    *("openai/gpt-5.4", "openai/gpt-5.2-codex", "qwen/qwen3-coder-plus"),
)
"""What OpenCode is offered; which of them work depends on the providers in its pod."""


def suggested_models(profiles: Iterable[AgentProfile]) -> dict[str, list[str]]:
    """Models as `config.model` names them, OpenCode's first, with the titles of the agents that take them."""
    found: dict[str, list[str]] = {model: [OPENCODE_TITLE] for model in OPENCODE_MODELS}
    for profile in profiles:
        for model in profile.models:
            found.setdefault(model, []).append(profile.title)
    return found


def paperclip_models(profiles: Iterable[AgentProfile]) -> list[dict[str, Any]]:
    """The same as Paperclip lists models. It asks for an adapter's models without an agent, so each label names its
    agents, and a search for one finds its models. Source: Paperclip 2026.916.1."""
    models = suggested_models(profiles).items()
    return [{"id": model, "label": f"{model} ({', '.join(titles)})"} for model, titles in models]


def list_text() -> str:
    return json.dumps(paperclip_models(load().values()), indent=2) + "\n"


if __name__ == "__main__":
    LIST_FILE.write_text(list_text())
