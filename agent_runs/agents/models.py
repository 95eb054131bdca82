"""Models that people are offered, with the agents that take them: suggestions, because accounts and gateways differ.

`python -m agent_runs.agents.models` rewrites the committed list, which Paperclip's plugin shows; a test keeps it fresh.
"""

import json
from pathlib import Path
from typing import Final

from agent_runs.agents.profile import OPENCODE_TITLE, load

LIST_FILE: Final = Path(__file__).with_name("models.json")
OPENCODE_MODELS: Final = (
    *("anthropic/claude-opus-4-7", "anthropic/claude-sonnet-4-6", "anthropic/claude-haiku-4-5"),
    *("openai/gpt-4o", "google/gemini-2.5-pro", "google/gemini-2.5-flash"),
    *("openai/gpt-5.5", "openai/gpt-5.2-codex", "qwen/qwen3-coder-plus"),
)
"""What OpenCode is offered; which of them work depends on the providers in its pod."""


def model_list() -> str:
    """The models as `config.model` names them, OpenCode's first, in the form in which Paperclip lists models.

    It asks for an adapter's models without an agent, so each label names its agents, and a search for one finds its
    models. Source: Paperclip 2026.916.1.
    """
    titles = {model: [OPENCODE_TITLE] for model in OPENCODE_MODELS}
    for profile in load().values():
        for model in profile.models:
            titles.setdefault(model, []).append(profile.title)
    models = [{"id": model, "label": f"{model} ({', '.join(agents)})"} for model, agents in titles.items()]
    return json.dumps(models, indent=2) + "\n"


if __name__ == "__main__":
    LIST_FILE.write_text(model_list())
