"""Which runs start OpenCode without its own list of models."""

from typing import Any

import pytest

from agent_runs.job.attempt_plan import MODELS_FILE
from tests.job.test_ineffective_variables import everything, planned

OWN: dict[str, Any] = {"own": {"npm": "@ai-sdk/openai-compatible", "models": {"big": {}}}}


def models_file(**config: Any) -> str | None:
    context = everything()
    context["config"] |= {"model": "own/big", "opencode": {"provider": OWN}, **config}
    return planned(context).get("OPENCODE_MODELS_PATH")


def test_a_run_whose_configuration_has_all_its_models_starts_without_the_list() -> None:
    assert models_file() == MODELS_FILE


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({"model": "anthropic/claude-haiku-4-5"}, id="a model of the list"),
        pytest.param({"opencodeFeatures": ["projectConfig"]}, id="a repository may name others"),
    ],
)
def test_a_run_that_may_need_the_list_has_it(config: dict[str, Any]) -> None:
    assert models_file(**config) is None
