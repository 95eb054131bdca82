"""`PAPERCLIP_OPENCODE_PROVIDERS`: what Paperclip's own OpenCode adapter reads is read here, too."""

import json
from typing import Any

import pytest

from agent_runs.contracts.errors import InvalidRequest
from agent_runs.contracts.start import HostTexts
from agent_runs.paperclip.preparation import prepare
from tests.paperclip.contexts import minimal, opened
from tests.support.cases import case

CANARY = "canary-71d0"
NAME = "PAPERCLIP_OPENCODE_PROVIDERS"
GATEWAY = {"npm": "@ai-sdk/openai-compatible", "options": {"apiKey": CANARY}, "models": {"m": {}}}


def providers(text: object, **config: Any) -> Any:
    given = text if isinstance(text, str) else json.dumps(text)
    return opened(minimal(**config), opencode_providers=given)[1].opencode.get("provider")


def test_providers_of_paperclips_environment_reach_opencode_and_no_history() -> None:
    prepared = prepare(minimal(), HostTexts(opencode_providers=json.dumps({"gw": GATEWAY})))
    assert prepared.secrets.opencode == {"provider": {"gw": GATEWAY}}
    assert CANARY not in prepared.request.model_dump_json() + repr(prepared)


def test_a_provider_of_the_variable_is_taken_whole_so_that_its_key_goes_nowhere_else() -> None:
    own = {"gw": {"options": {"baseURL": "https://elsewhere"}}, "mine": {"models": {}}}
    merged = providers({"gw": GATEWAY}, opencode={"provider": own, "share": "auto"})
    assert merged == {"gw": GATEWAY, "mine": {"models": {}}}


def test_the_agents_own_variable_counts_before_that_of_paperclips_environment() -> None:
    own = json.dumps({"mine": {"models": {}}})
    assert providers({"gw": GATEWAY}, env={NAME: own}) == {"mine": {"models": {}}}
    assert providers({"gw": GATEWAY}, env={NAME: ""}) is None
    _, secrets, _ = opened(minimal(env={NAME: own}))
    assert secrets.env == {}


@pytest.mark.parametrize("place", [NAME, f"config.env.{NAME}"])
def test_wrong_providers_are_refused_by_the_name_of_the_variable_with_the_remedy_and_all_else_that_is_wrong(
    place: str,
) -> None:
    wrong = {
        f"not json {CANARY}": f"{place} must be a JSON object",
        "[1]": f"{place} must be a JSON object",
        '{"gw": "\\ud800"}': f"{place} must be a JSON object",
        '{"gw": {"x": 1e999}}': f"{place} must be a JSON object",
        json.dumps({"gw": CANARY}): f"{place}.gw must be an object",
        json.dumps({"gw": {"x": CANARY * 20_000}}): f"{place} has ",
        "[" * 300_000: f"{place} must be a JSON object of at most 262144 characters",
    }
    for text, message in wrong.items():
        own = {} if place == NAME else {"env": {NAME: text}}
        host = HostTexts(opencode_providers=text if place == NAME else None)
        with case(text[:40]), pytest.raises(InvalidRequest, match=r"config\.timeoutSec") as refused:
            prepare(minimal(timeoutSec=-1, **own), host)
        with case(text[:40]):
            assert message in refused.value.message
            where = "the environment of Paperclip's server" if place == NAME else "the agent's configuration"
            assert f"correct it in {where}" in refused.value.message
            assert CANARY not in refused.value.message


def test_an_agent_that_is_not_opencode_is_not_refused_for_opencodes_providers() -> None:
    assert providers("not json", agent="claude") is None
    assert providers(" ") is None


def test_an_agent_whose_program_is_left_open_or_spelled_with_blanks_is_opencode() -> None:
    for agent in ("", None, " opencode "):
        with case(repr(agent)):
            assert providers({"gw": GATEWAY}, agent=agent) == {"gw": GATEWAY}
