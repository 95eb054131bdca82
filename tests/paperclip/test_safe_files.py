import os
from pathlib import Path

import pytest

from agent_runs.paperclip.safe_files import UnreadableFile, read_text
from agent_runs.paperclip.skills import UnreadableSkill, read_skill

LIMIT = 100


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    (tmp_path / "key").write_text("canary")
    volume = tmp_path / "volume"
    volume.mkdir()
    (volume / "AGENTS.md").write_text("\ufeffBe brief.\n", encoding="utf-8")
    return volume


def test_a_file_on_the_volume_is_read(volume: Path) -> None:
    assert read_text(volume / "AGENTS.md", root=volume, limit=LIMIT) == "Be brief.\n"


def test_a_link_within_the_volume_is_followed(volume: Path) -> None:
    (volume / "link").symlink_to(volume / "AGENTS.md")
    assert read_text(volume / "link", root=volume, limit=LIMIT) == "Be brief.\n"


def test_a_path_or_link_that_leads_out_of_the_volume_is_refused(volume: Path) -> None:
    (volume / "link").symlink_to(volume.parent / "key")
    (volume / "folder").symlink_to(volume.parent)
    for way in ("link", "folder/key", "../key"):
        with pytest.raises(UnreadableFile, match="leads out") as caught:
            read_text(volume / way, root=volume, limit=LIMIT)
        assert "canary" not in str(caught.value)


def test_a_skill_that_leads_out_of_the_volume_is_refused(volume: Path) -> None:
    (volume / "skill").mkdir()
    (volume / "skill" / "SKILL.md").symlink_to(volume.parent / "key")
    with pytest.raises(UnreadableSkill, match="leads out"):
        read_skill(volume / "skill", root=volume)


def test_an_unreadable_file_is_named_with_its_cause(volume: Path) -> None:
    (volume / "large").write_bytes(b"x" * (LIMIT + 1))
    (volume / "binary").write_bytes(b"\xff")
    (volume / "circle").symlink_to(volume / "circle")
    os.mkfifo(volume / "pipe")
    causes = {
        "large": "larger than",
        "binary": "not UTF-8",
        "pipe": "not a regular file",
        ".": "directory|regular",
        "absent": "No such file",
        "circle": "circle|symbolic",
        "nul\0": "NUL",
    }
    for name, cause in causes.items():
        with pytest.raises(UnreadableFile, match=cause):
            read_text(volume / name, root=volume, limit=LIMIT)


def test_a_folder_without_permission_is_an_unreadable_skill(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", refuse)
    with pytest.raises(UnreadableSkill):
        read_skill(Path("/nowhere/skill"))
