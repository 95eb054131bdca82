"""Skills as folders under the real OpenCode: found where the configuration names them, with what is beside them."""

import json
from pathlib import Path

import pytest

from agent_runs.agents.opencode.merge import merge
from agent_runs.paperclip.skills import offered_name
from tests.opencode.real import MODEL, call, opencode, play

BODY = "Read references/deep/steps.md and follow it."
TEXTS = {
    "plain": f"---\nname: plain\ndescription: How to deploy.\n---\n{BODY}",
    "windows": f"---\r\nname: 'windows'\r\ndescription: >\r\n  How to deploy.\r\n---\r\n{BODY}",
    "other-folder-name": f"---\nname: renamed\ndescription: How to deploy.\n---\n{BODY}",
    "nameless": f"---\ndescription: How to deploy.\n---\n{BODY}",
    "bare": BODY,
}


def skill(folder: Path, text: str) -> str:
    (folder / "references/deep").mkdir(parents=True)
    (folder / "scripts").mkdir()
    (folder / "SKILL.md").write_text(text, newline="")
    (folder / "references/deep/steps.md").write_text("First build, then push.")
    (folder / "scripts/deploy.sh").write_text("echo deployed by the script")
    return str(folder)


async def test_opencode_offers_the_skills_that_we_say_it_offers(tmp_path: Path) -> None:
    folders = [skill(tmp_path / "skills" / name, text) for name, text in TEXTS.items()]
    merged = merge(model=MODEL, agent={}, operator={}, skill_folders=folders)
    code, output, errors = await opencode(tmp_path, merged, "debug", "skill")
    assert code == 0, errors
    offered = {each["name"] for each in json.loads(output) if each["location"].startswith(str(tmp_path))}
    assert offered == {name for text in TEXTS.values() if (name := offered_name(text))}
    assert offered == {"plain", "windows", "renamed"}


@pytest.mark.slow
@pytest.mark.parametrize("skip", [True, False], ids=["any folder", "its directory only"])
async def test_an_agent_uses_a_skill_with_its_references_and_scripts(tmp_path: Path, skip: bool) -> None:
    folder = skill(tmp_path / "skills" / "plain", TEXTS["plain"])
    steps = (
        call("skill", name="plain"),
        call("read", filePath=f"{folder}/references/deep/steps.md"),
        call("bash", command=f"sh {folder}/scripts/deploy.sh", description="deploy"),
    )
    run = await play(tmp_path, *steps, {"text": "Done."}, skill_folders=[folder], skip_permissions=skip)
    assert [state["status"] for state in run.tools] == ["completed"] * 3, [run.tools, run.errors]
    outputs = [state["output"] for state in run.tools]
    assert BODY in outputs[0]
    assert "First build, then push." in outputs[1]
    assert "deployed by the script" in outputs[2]
    assert "How to deploy." in json.dumps(run.requests[0]) + json.dumps(run.requests[1])
