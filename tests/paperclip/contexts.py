"""Real execution contexts, captured from a live Paperclip (tokens replaced), and the keys that tests seal with."""

import copy
import json
from pathlib import Path
from typing import Any

from agent_runs.contracts.request import PromptSource, RunRequest, Secrets
from agent_runs.contracts.start import HostTexts
from agent_runs.paperclip.preparation import prepare
from agent_runs.paperclip.sealing import Opener, Sealer, SealingKey

FIXTURES = Path(__file__).parents[1] / "fixtures"
NAMES = sorted(file.name for file in (FIXTURES / "paperclip").glob("ctx-*.json"))
KEY = SealingKey.generate()
SEALER = Sealer(KEY.public)
OPENER = Opener([KEY])
MODEL = "anthropic/claude-sonnet-4-6"


def captured(name: str) -> dict[str, Any]:
    """A captured context; agents of the capture ran a dummy adapter without a model, in any folder of that machine."""
    (file,) = (FIXTURES / "paperclip").glob(f"{name.removesuffix('.json')}*.json")
    context: dict[str, Any] = json.loads(file.read_text())
    context["config"].setdefault("model", MODEL)
    context["config"].setdefault("workspace", "ephemeral")
    context["config"].pop("endpoint", None)  # a field of the dummy adapter
    return context


def captured_environment(name: str) -> dict[str, str]:
    (file,) = (FIXTURES / "paperclip").glob(f"env-{name}*.json")
    environment: dict[str, str] = json.loads(file.read_text())
    return environment


def minimal(**config: Any) -> dict[str, Any]:
    """The smallest context that can run, with `config` on top."""
    return {
        "runId": "run-1",
        "agent": {"id": "agent-1", "companyId": "company-1", "name": "Ada"},
        "config": {"model": MODEL, **config},
    }


def with_value(context: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of `context` with `value` at the dotted `path`, objects made as needed."""
    changed = copy.deepcopy(context)
    *steps, last = path.split(".")
    place = changed
    for step in steps:
        if not isinstance(place.get(step), dict):
            place[step] = {}
        place = place[step]
    place[last] = value
    return changed


def opened(context: dict[str, Any], **host: object) -> tuple[RunRequest, Secrets, PromptSource]:
    """What becomes of a context, and of what only Paperclip's process knows."""
    prepared = prepare(context, HostTexts.model_validate(host))
    return prepared.request, prepared.secrets, prepared.prompt
