"""A whole run with a skill that has files: the agent gets its folder, and its text is not in the prompt."""

import uuid
from collections.abc import AsyncIterator

import pytest

from agent_runs.contracts.start import HostTexts
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
