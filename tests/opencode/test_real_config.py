"""The merged configuration under the real OpenCode: what people configure has its effect there."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent_runs.agents.opencode.config import deep_merge
from agent_runs.agents.opencode.merge import merge
from agent_runs.contracts.opencode import KNOWN
from tests.opencode.real import MODEL, call, opencode, play


@pytest.mark.slow
async def test_a_run_goes_on_where_the_configuration_would_ask(tmp_path: Path) -> None:
    agent = {"permission": {"bash": {"touch *": "ask"}}}
    steps = (call("bash", command="touch made", description="make a file"), {"text": "I could not."})
    run = await play(tmp_path, *steps, agent=agent)
    assert (run.exit_code, [state["status"] for state in run.tools]) == (0, ["error"]), run.errors
    assert not (tmp_path / "workspace" / "made").exists()
    assert run.events[-1]["part"]["reason"] == "stop"
    assert "I could not." in json.dumps(run.events)


@pytest.mark.slow
async def test_instructions_and_an_agents_prompt_reach_the_model(tmp_path: Path) -> None:
    (tmp_path / "rules.md").write_text("Always rhyme.")
    agent = {"agent": {"build": {"prompt": "You are a poet."}}}
    run = await play(tmp_path, {"text": "Ok."}, agent=agent, operator={"instructions": [str(tmp_path / "rules.md")]})
    assert run.exit_code == 0, run.errors
    assert "Always rhyme." in run.asked
    assert "You are a poet." in run.asked


@pytest.mark.slow
async def test_a_plugin_runs_when_one_is_configured(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin.js"
    hook = f"fs.writeFileSync('{tmp_path}/ran', ''); return {{}}"
    plugin.write_text(f"import fs from 'fs'; export default async () => {{ {hook} }}")
    run = await play(tmp_path, {"text": "Ok."}, agent={"plugin": [f"file://{plugin}"]})
    assert run.exit_code == 0, run.errors
    assert (tmp_path / "ran").exists()


async def test_an_unset_variable_is_empty_for_opencode(tmp_path: Path) -> None:
    servers = {"mcp": {"docs": {"type": "remote", "url": "{env:UNSET}/mcp", "enabled": False}}}
    code, output, errors = await opencode(tmp_path, merge(model=MODEL, agent=servers, operator={}), "debug", "config")
    assert code == 0, errors
    assert json.loads(output)["mcp"]["docs"]["url"] == "/mcp"


async def test_every_known_key_is_known_to_opencode_and_others_are_dropped(tmp_path: Path) -> None:
    objects: dict[str, Any] = {key: {} for key in KNOWN - {"$schema"}}
    values = {"autoshare": False, "default_agent": "build", "layout": "auto", "logLevel": "INFO", "shell": "/bin/sh"}
    values |= {"subagent_depth": 1, "username": "ada", "instructions": [], "plugin": []}
    whole = deep_merge({**objects, **values}, {"odd": {}, "disabled_providers": [], "permission": {}})
    merged = merge(model=MODEL, agent={}, operator={})
    merged.config.update({key: value for key, value in whole.items() if key not in merged.config})
    code, output, errors = await opencode(tmp_path, merged, "debug", "config")
    assert code == 0, errors
    assert KNOWN - json.loads(output).keys() <= {"autoshare", "layout"}
    assert "odd" not in json.loads(output)


@pytest.mark.slow
@pytest.mark.parametrize("skip", [True, False])
async def test_outside_of_the_directory_only_what_may_be_read_is_read(tmp_path: Path, skip: bool) -> None:
    for name in ("mine", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes.md").write_text(f"notes of {name}")
    steps = [call("read", filePath=str(tmp_path / name / "notes.md")) for name in ("mine", "other")]
    agent = {"agent": {"build": {"permission": {"external_directory": "allow"}}}}
    run = await play(
        tmp_path, *steps, {"text": "Done."}, agent=agent, skip_permissions=skip, readable=[str(tmp_path / "mine")]
    )
    assert [state["status"] for state in run.tools] == ["completed", "completed" if skip else "error"], run.errors


@pytest.mark.slow
async def test_a_model_that_its_provider_does_not_declare_fails_before_anybody_is_asked(tmp_path: Path) -> None:
    run = await play(tmp_path, {"text": "Ok."}, model="fake/scenario/scirpt")
    assert run.exit_code == 1
    assert "Model not found: fake/scenario/scirpt" in run.errors
    assert run.requests == []
