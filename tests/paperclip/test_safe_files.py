import os
from pathlib import Path

import pytest

from agent_runs.paperclip.safe_files import OwnFiles, UnreadableFile
from agent_runs.paperclip.skills import SKILL_LIMIT, UnreadableSkill, read_skill

LIMIT = 100


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The folder of the agent's instructions."""
    own = tmp_path / "instances" / "default" / "companies" / "acme" / "agents" / "ada" / "instructions"
    own.mkdir(parents=True)
    (own / "AGENTS.md").write_text("\ufeffBe brief.\n", encoding="utf-8")
    return own


@pytest.fixture
def skill(tmp_path: Path) -> Path:
    """The folder of a skill of the agent's company."""
    skill = tmp_path / "instances" / "default" / "skills" / "acme" / "one"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("\ufeff# Skill\n\n", encoding="utf-8")
    return skill


@pytest.fixture
def files(tmp_path: Path) -> OwnFiles:
    return OwnFiles(tmp_path, company_id="acme", agent_id="ada")


def test_a_file_of_the_agents_instructions_is_read(own: Path, files: OwnFiles) -> None:
    assert files.instructions(own / "AGENTS.md", LIMIT) == "Be brief.\n"


def test_a_link_within_the_agents_instructions_is_followed(own: Path, files: OwnFiles) -> None:
    (own / "link").symlink_to(own / "AGENTS.md")
    assert files.instructions(own / "link", LIMIT) == "Be brief.\n"


def test_the_volume_itself_may_be_reached_through_a_link(own: Path, tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.symlink_to(tmp_path)
    files = OwnFiles(volume, company_id="acme", agent_id="ada")
    assert files.instructions(volume / own.relative_to(tmp_path) / "AGENTS.md", LIMIT) == "Be brief.\n"


def test_a_skill_is_read_from_its_folder_or_file(skill: Path, files: OwnFiles) -> None:
    assert read_skill(skill, files) == read_skill(skill / "SKILL.md", files) == "# Skill"


def test_a_skill_of_a_project_of_the_company_is_read(files: OwnFiles) -> None:
    skill = files.root / "instances" / "default" / "projects" / "acme" / "project" / "repository" / "skill"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("# Skill")
    assert read_skill(skill, files) == "# Skill"


def test_an_unreadable_file_is_named_with_its_cause(own: Path, files: OwnFiles) -> None:
    (own / "large").write_bytes(b"x" * (LIMIT + 1))
    (own / "binary").write_bytes(b"\xff")
    (own / "circle").symlink_to(own / "circle")
    os.mkfifo(own / "pipe")
    causes = {
        "large": "larger than",
        "binary": "not UTF-8",
        "pipe": "not a regular file",
        ".": "directory|regular",
        "absent": "No such file",
        "circle": "symbolic",
        "nul\0": "NUL",
    }
    for name, cause in causes.items():
        with pytest.raises(UnreadableFile, match=cause):
            files.instructions(own / name, LIMIT)


def test_a_skill_that_cannot_be_read_is_named(skill: Path, files: OwnFiles) -> None:
    (skill / "large").write_bytes(b"x" * (SKILL_LIMIT + 1))
    (skill / "binary").write_bytes(b"\xff\xfe")
    os.mkfifo(skill / "fifo")
    for name in ("large", "binary", "fifo", "absent"):
        with pytest.raises(UnreadableSkill, match=name):
            read_skill(skill / name, files)


def test_a_folder_without_permission_is_an_unreadable_skill(monkeypatch: pytest.MonkeyPatch, files: OwnFiles) -> None:
    def refuse(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", refuse)
    with pytest.raises(UnreadableSkill):
        read_skill(Path("/nowhere/skill"), files)
