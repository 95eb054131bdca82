"""Which runs start OpenCode with a part of its own list of models, and with which."""

from typing import Any

import pytest

from agent_runs.job.manifest import MODELS_FILE
from tests.job.inputs import main_container
from tests.job.test_ineffective_variables import everything, plan_of

OWN: dict[str, Any] = {"own": {"npm": "@ai-sdk/openai-compatible", "models": {"big": {}}}}


def runner_options(**config: Any) -> list[tuple[str, str]]:
    """Those of the runner that are about the list."""
    context = everything()
    context["config"] |= {"model": "own/big", "opencode": {"provider": OWN}, **config}
    arguments = main_container(plan_of(context))["args"]
    before = arguments[: arguments.index("--")]
    return [word for word in zip(before[::2], before[1::2], strict=True) if word[0] in {"--models", "--listed"}]


@pytest.mark.parametrize(
    ("config", "listed"),
    [
        pytest.param({}, [], id="all its models are declared"),
        pytest.param({"model": "anthropic/claude-haiku-4-5"}, ["anthropic"], id="a model of the list"),
        pytest.param(
            {"opencode": {"small_model": "openai/gpt-5", "provider": OWN}}, ["openai"], id="one of the list besides"
        ),
    ],
)
def test_a_run_gets_the_list_of_the_providers_that_it_can_use(config: dict[str, Any], listed: list[str]) -> None:
    assert runner_options(**config) == [("--models", MODELS_FILE), *(("--listed", name) for name in listed)]


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({"opencodeFeatures": ["projectConfig"]}, id="a repository may name others"),
        pytest.param({"opencode": {"provider": OWN, "plugin": ["one"]}}, id="a plugin may add some"),
    ],
)
def test_a_run_that_may_need_any_provider_has_the_whole_list(config: dict[str, Any]) -> None:
    assert runner_options(**config) == []
