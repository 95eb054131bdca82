"""A whole run with a skill that has files: the agent gets its folder, and its text is not in the prompt."""

import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from agent_runs.client.outcome import outcome_at_close
from agent_runs.contracts.start import HostTexts
from agent_runs.paperclip.skills import OPERATIONAL
from tests.opencode.real import call, with_ripgrep
from tests.runs.real_opencode import opencode_agent, playing, real_system
from tests.runs.system import System

BODY = "The steps are in references/steps.md."


@pytest.fixture
async def sharing(system: System) -> AsyncIterator[System]:
    """The system with a data volume that the worker and all agents share."""
    shared = await system.with_data_volume("skills")
    async with shared.worker():
        yield shared


async def test_the_agent_has_its_skills_and_instructions_with_the_files_beside_them(sharing: System) -> None:
    script = (
        'cat; cat "$OPENCODE_CONFIG"; echo; cat "$SKILL/references/steps.md" "$BESIDE"; '
        'cat "$OTHER/references/steps.md" || echo no other company'
    )
    raw = sharing.agent(script)
    volume = sharing.volume("skills")
    folders = {"SKILL": f"instances/default/skills/{raw['agent']['companyId']}/deploy"}
    folders["OTHER"] = f"instances/default/skills/{uuid.uuid4()}/deploy"
    for name, folder in folders.items():
        (volume / folder / "references").mkdir(parents=True)
        (volume / folder / "references/steps.md").write_text(f"steps of {name}\n")
        raw["config"]["env"][name] = f"/paperclip/{folder}"
    instructions = f"instances/default/companies/{raw['agent']['companyId']}/agents/{raw['agent']['id']}/instructions"
    (volume / instructions).mkdir(parents=True)
    (volume / instructions / "style.md").write_text("Write plainly.\n")
    raw["config"]["instructionsFilePath"] = f"/paperclip/{instructions}/AGENTS.md"
    raw["config"]["env"]["BESIDE"] = f"/paperclip/{instructions}/style.md"
    raw["config"]["paperclipRuntimeSkills"] = [
        {"key": name, "source": f"/paperclip/{folder}", "required": True} for name, folder in folders.items()
    ]
    text = f"---\nname: deploy\ndescription: How to deploy.\n---\n{BODY}"
    outcome = await sharing.outcome(raw, HostTexts(instructions="Be kind.", skills={"SKILL": text}))
    assert outcome.warnings == ()
    written = b"\n".join(await sharing.stdout(raw)).decode()
    assert BODY not in written
    assert f'"skills": {{"paths": ["/paperclip/{folders["SKILL"]}"]}}' in written
    assert "steps of SKILL" in written
    assert "Be kind." in written
    assert "Write plainly." in written
    assert "steps of OTHER" not in written
    assert written.endswith("no other company")


def paperclips(raw: dict[str, Any]) -> HostTexts:
    """Gives the run the skill that comes with Paperclip. Returns what the plugin has read."""
    source = "/app/node_modules/@paperclipai/server/skills/paperclip"
    raw["config"]["paperclipRuntimeSkills"] = [{"key": OPERATIONAL, "source": source}]
    text = f"---\nname: paperclip\ndescription: How to report.\n---\n{BODY}"
    files = {"references/steps.md": "steps of Paperclip\n", "scripts/upload.sh": "#!/bin/sh\necho uploaded\n"}
    return HostTexts(skills={OPERATIONAL: text}, skill_files={OPERATIONAL: files})


async def test_the_agent_has_the_skill_that_comes_with_paperclip_as_a_folder_without_a_data_volume(
    system: System,
) -> None:
    folder = "/agent-run/skills/paperclip"
    raw = system.agent(
        f'cat; cat "$OPENCODE_CONFIG"; echo; cat {folder}/references/steps.md; {folder}/scripts/upload.sh'
    )
    ticket = await system.start(raw, paperclips(raw))
    await outcome_at_close(ticket.handle(system.temporal))
    written = b"\n".join(await system.stdout(raw)).decode()
    assert BODY not in written
    assert f'"skills": {{"paths": ["{folder}"]}}' in written
    assert written.endswith("steps of Paperclip\nuploaded")


@pytest.mark.slow
@pytest.mark.parametrize("skip", [True, False], ids=["any folder", "its directory only"])
@pytest.mark.parametrize("opencode", [1, 2])
async def test_opencode_loads_the_skill_that_comes_with_paperclip_when_it_needs_it(
    temporal: Client, tmp_path: Path, opencode: int, skip: bool
) -> None:
    reading = {1: {"filePath": "/agent-run/skills/paperclip/references/steps.md"}}
    reading[2] = {"path": reading[1]["filePath"]}
    loading: dict[int, dict[str, str]] = {1: {"name": "paperclip"}, 2: {"id": "paperclip"}}
    async with real_system(temporal, tmp_path) as system:
        raw = await opencode_agent(system, "script", opencode, dangerouslySkipPermissions=skip)
        raw["config"]["env"]["PATH"] += f":{with_ripgrep(tmp_path / 'bin')}"
        raw = playing(raw, call("skill", **loading[opencode]), call("read", **reading[opencode]), {"text": "Done."})
        outcome = await system.outcome(raw, paperclips(raw))
        assert outcome.failure is None, outcome.failure
        results = [each["part"]["state"] for each in await system.events(raw) if each["type"] == "tool_use"]
    assert [each["status"] for each in results] == ["completed"] * 2, results
    assert BODY in json.dumps(results[0])
    assert "steps of Paperclip" in json.dumps(results[1])
