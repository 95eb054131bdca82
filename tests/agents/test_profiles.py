"""Profiles of agents: what a file may say, and that ours mean what the real agents did."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runs.agents.form import AGENTS
from agent_runs.agents.models import LIST_FILE, model_list
from agent_runs.agents.profile import AgentProfile, Match, keys, load, parse, rendered_file
from agent_runs.contracts.errors import InvalidRequest
from agent_runs.transcript.provider_errors import failure_for, provider_error
from deploy.images import agent_images
from dev_stack.agent_programs import PROGRAMS
from dev_stack.agents_page import PAGE_FILE, page_text
from tests.conftest import FIXTURES

OURS = load()
SMALL = "name: goose\ntitle: goose\ncommand: [goose, acp]\n"


def captured(name: str, case: str) -> list[dict[str, Any]]:
    """The errors that the real agent answered with."""
    lines = (FIXTURES / "agents" / name / f"{case}.jsonl").read_text().splitlines()
    messages = [json.loads(line) for line in lines]
    answers = [each["message"] for each in messages if each["to"] == "client"]
    return [each["error"] for each in answers if "error" in each] + [
        {"code": 0, "message": failure["title"], "data": failure}
        for each in answers
        if "result" in each and (failure := failure_in(name, each["result"]))
    ]


def failure_in(name: str, result: dict[str, Any]) -> dict[str, Any]:
    """What an answer to a prompt says of its failure where the profile has it looked for."""
    found: dict[str, Any] = result.get("_meta") or {} if OURS[name].failure else {}
    for key in OURS[name].failure:
        found = found.get(key) or {}
    return found


def matches(known: Match, error: dict[str, Any]) -> bool:
    text = f"{error['message']} {json.dumps(error.get('data'))}"
    return known.code in (None, error["code"]) and re.search(known.matches, text) is not None


def failures(name: str, case: str) -> Iterator[str]:
    for error in captured(name, case):
        known = next((each for each in OURS[name].errors if matches(each, error)), None)
        assert known is not None, error
        event = {"name": known.name, "data": {"message": error["message"], "statusCode": known.status}}
        yield failure_for(provider_error(event)).code


def test_the_page_of_agents_is_fresh() -> None:
    assert PAGE_FILE.read_text() == page_text(), "run: python -m dev_stack.agents_page"


def chunks(name: str, case: str) -> Iterator[str]:
    """What the real agent sent as its answer."""
    for line in (FIXTURES / "agents" / name / f"{case}.jsonl").read_text().splitlines():
        update = (json.loads(line)["message"].get("params") or {}).get("update") or {}
        if update.get("sessionUpdate") == "agent_message_chunk" and (text := update["content"].get("text")):
            yield text


def is_notice(name: str, text: str) -> bool:
    return any(re.search(each, text) for each in OURS[name].informational)


@pytest.mark.parametrize(
    ("name", "case"),
    [("pi", f"error-{each}") for each in ("429", "500", "503")],
)
def test_the_notices_of_a_real_agent_whose_provider_fails_are_no_answer(name: str, case: str) -> None:
    said = list(chunks(name, case))
    assert said
    assert [text for text in said if not is_notice(name, text)] == []


@pytest.mark.parametrize("name", OURS)
def test_an_answer_of_the_real_agent_is_no_notice(name: str) -> None:
    answers = {"text": "Counted.", "tool-bash": "The command printed its greeting."}
    for case, answer in answers.items():
        assert answer in "".join(text for text in chunks(name, case) if not is_notice(name, text))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gemini", "[MODE_UPDATE] autoEdit"),
        ("pi", "Retrying..."),
        ("pi", "Context nearing limit, running automatic compaction..."),
        ("pi", "Automatic compaction finished; context was summarized to continue the session."),
    ],
)
def test_a_notice_that_is_in_the_programs_text_is_no_answer(name: str, text: str) -> None:
    assert is_notice(name, text)
    assert not is_notice(name, f"As I said: {text}")
    assert not is_notice(name, f"{text} And more.")


def test_the_list_of_models_is_fresh() -> None:
    assert LIST_FILE.read_text() == model_list(), "run: python -m agent_runs.agents.models"


def test_a_model_on_offer_names_the_agents_that_take_it() -> None:
    offered = {each["id"]: each["label"] for each in json.loads(model_list())}
    assert all("/" in model for model in offered)
    assert offered["openai/gpt-5.5"] == "openai/gpt-5.5 (OpenCode, Codex)"
    assert offered["anthropic/opus"] == "anthropic/opus (Claude Code)"


@pytest.mark.parametrize("name", ["claude", "codex", "gemini"])
def test_the_suggested_models_are_those_that_the_real_agent_names(name: str) -> None:
    """Qwen and pi name none but the one that is configured."""
    suggested = {model.partition("/")[2] for model in OURS[name].models}
    assert suggested == set(named_models(name)) - {"scenario/usage", "default"}  # of a configuration, of an account


def named_models(name: str) -> Iterator[str]:
    """The ids in the real agent's answer to `session/new`."""
    lines = (FIXTURES / "agents" / name / "text.jsonl").read_text().splitlines()
    for result in (json.loads(line)["message"].get("result") or {} for line in lines):
        models = (result.get("models") or {}).get("availableModels", ())
        yield from (each["modelId"].partition("[")[0] for each in models)  # Codex has one of each effort
        options = [each for each in result.get("configOptions") or () if each["id"] == "model"]
        yield from (each["value"] for option in options for each in option["options"])


def test_the_form_offers_every_agent_by_its_title() -> None:
    assert {
        "opencode": "OpenCode",
        **{name: OURS[name].title for name in ("claude", "codex", "gemini", "qwen", "pi")},
    } == AGENTS
    assert OURS.keys() == PROGRAMS.keys()


def test_the_versions_of_a_profile_are_those_of_its_image() -> None:
    for name, profile in OURS.items():
        wanted = json.loads((PROGRAMS[name].manifest / "package.json").read_text())["dependencies"]
        newest = {package: newest for package, (_, newest) in profile.packages.items()}
        assert newest == wanted, name


def test_the_image_of_each_agent_has_the_program_that_its_profile_starts() -> None:
    images = {image.name: image for image in agent_images()}
    assert images.keys() == OURS.keys()
    for name, profile in OURS.items():
        programs = json.loads((PROGRAMS[name].manifest / "package.json").read_text())["programs"]
        assert programs[profile.command[0]] == PROGRAMS[name].entry
        assert profile.version_command[0] in programs
        assert f"{images[name].repository}:{images[name].tag}" in {
            f"agent-{name}:{newest}" for _, newest in profile.packages.values()
        }


@pytest.mark.parametrize(
    ("name", "case", "code"),
    [
        ("claude", "error-400", "provider_rejected"),
        ("claude", "error-401", "provider_credentials"),
        ("claude", "error-429", "provider_quota"),
        ("claude", "error-500", "provider_unavailable"),
        ("claude", "provider-away", "provider_unavailable"),
        ("claude", "model-unknown", "model_unknown"),
        ("claude", "no-auth", "provider_credentials"),
        ("codex", "error-400", "provider_rejected"),
        ("codex", "error-401", "provider_credentials"),
        ("codex", "error-429", "provider_quota"),
        ("codex", "error-500", "provider_unavailable"),
        ("codex", "model-unknown", "model_unknown"),
        ("codex", "no-auth", "provider_credentials"),
        ("gemini", "error-400", "provider_rejected"),
        ("gemini", "error-401", "provider_credentials"),
        ("gemini", "error-429-3600", "provider_quota"),
        ("gemini", "model-unknown", "model_unknown"),
        ("qwen", "error-400", "provider_rejected"),
        ("qwen", "error-401", "provider_credentials"),
        ("qwen", "model-unknown", "model_unknown"),
        ("qwen", "provider-away", "provider_unavailable"),
        ("qwen", "no-auth", "provider_credentials"),
    ],
)
def test_an_error_of_the_real_agent_has_the_name_of_its_cause(name: str, case: str, code: str) -> None:
    assert set(failures(name, case)) == {code}


@pytest.mark.parametrize("name", OURS)
def test_an_unknown_session_of_the_real_agent_is_known_for_one(name: str) -> None:
    errors = captured(name, "load-unknown")
    assert errors
    for error in errors:
        assert any(matches(each, error) for each in OURS[name].unknown_session), error


@pytest.mark.parametrize("name", OURS)
def test_an_error_of_the_provider_is_no_unknown_session(name: str) -> None:
    for file in (FIXTURES / "agents" / name).glob("error-*.jsonl"):
        for error in captured(name, file.stem):
            assert not any(matches(each, error) for each in OURS[name].unknown_session), error


@given(st.text(max_size=30), st.text(max_size=30), st.sampled_from(["high", None]))
def test_what_a_configuration_says_cannot_leave_its_place_in_a_file(model: str, base: str, effort: str | None) -> None:
    for profile in OURS.values():
        variables = {profile.base_url.variable: base} if profile.base_url else {}
        values = profile.values(model=f"p/{model}", effort=effort, skip_permissions=True, variables=variables)
        for path, text in profile.files.items():
            written = rendered_file(text, values)
            read = tomllib.loads(written) if path.endswith(".toml") else json.loads(written)
            plain = profile.values(model="p/m", effort=effort, skip_permissions=True, variables={})
            usual = rendered_file(text, plain)
            assert shape(read) == shape(tomllib.loads(usual) if path.endswith(".toml") else json.loads(usual))


def shape(value: Any) -> Any:
    """The data with every text replaced."""
    if isinstance(value, dict):
        return {key: shape(below) for key, below in value.items()}
    if isinstance(value, list):
        return [shape(below) for below in value]
    return "text" if isinstance(value, str) else value


def test_a_line_whose_placeholder_has_no_value_is_left_out() -> None:
    codex = OURS["codex"]
    without = codex.values(model="openai/m", effort=None, skip_permissions=True, variables={})
    text = codex.files[".codex/config.toml"]
    assert "model_reasoning_effort" not in tomllib.loads(rendered_file(text, without))
    assert tomllib.loads(rendered_file(text, {**without, "effort": "low"}))["model_reasoning_effort"] == "low"


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("comand: [a]", "comand: no such key"),
        ("permissions: {allow: a, deny: b}", "permissions.deny: no such key"),
        ("environment: {MODEL: '{modell}'}", "{modell}"),
        ("environment: {9: a}", "environment"),
        ("files: {../x: a}", "files"),
        ("files: {.x: '{base_url}'}", "base_url is missing"),
        ("errors: [{matches: '('}]", "errors.0.matches"),
        ("usage: nowhere", "usage"),
        ("prepare: 'rm -rf /'", "prepare"),
        ("command: []", "command"),
        ("a: [", "line"),
    ],
)
def test_a_wrong_profile_is_refused_by_the_name_of_what_is_wrong(line: str, named: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse(f"{SMALL}{line}\n", "goose.yaml")
    assert named in refused.value.message
    assert "goose.yaml" in refused.value.message


def test_an_operators_profile_is_added_and_may_replace_one_of_ours(tmp_path: Path) -> None:
    (tmp_path / "goose.yaml").write_text(f"{SMALL}keys: [GOOSE_TICKET]\n")
    (tmp_path / "pi.yaml").write_text(SMALL.replace("goose", "pi"))
    (tmp_path / "README").write_text("not a profile")
    found = load(tmp_path)
    assert (found["goose"].command, found["pi"].title) == (("goose", "acp"), "pi")
    assert found.keys() == OURS.keys() | {"goose"}
    assert "GOOSE_TICKET" in keys(found.values())


@pytest.mark.parametrize("name", ["opencode", "Goose", "goose/x"])
def test_a_profile_with_a_name_that_no_configuration_could_say_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="name"):
        parse(SMALL.replace("goose", name), "goose.yaml")


def test_a_profile_that_is_called_otherwise_than_its_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "duck.yaml").write_text(SMALL)
    with pytest.raises(InvalidRequest, match=r"duck\.yaml: name"):
        load(tmp_path)


def test_the_smallest_profile_says_what_it_cannot_do() -> None:
    goose = AgentProfile(name="goose", title="goose", command=("goose", "acp"))
    assert (goose.takes_effort, goose.usage, goose.cost, goose.permissions.reject) == (False, None, None, None)
    assert goose.version_command == ("goose", "--version")
