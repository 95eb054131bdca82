import os
from pathlib import Path

import pytest

from paperclip.reading import Unreadable, read_text
from paperclip.skills import UnreadableSkill, read_skill

LIMIT = 100


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    (tmp_path / "key").write_text("canary")
    volume = tmp_path / "volume"
    volume.mkdir()
    (volume / "AGENTS.md").write_text("\ufeffBe brief.\n", encoding="utf-8")
    return volume


def test_a_file_on_the_volume_is_read(volume: Path) -> None:
    assert read_text(volume / "AGENTS.md", within=volume, limit=LIMIT) == "Be brief.\n"


def test_a_link_within_the_volume_is_followed(volume: Path) -> None:
    (volume / "link").symlink_to(volume / "AGENTS.md")
    assert read_text(volume / "link", within=volume, limit=LIMIT) == "Be brief.\n"


def test_nothing_leads_out_of_the_volume(volume: Path) -> None:
    (volume / "link").symlink_to(volume.parent / "key")
    (volume / "folder").symlink_to(volume.parent)
    for way in ("link", "folder/key", "../key"):
        with pytest.raises(Unreadable, match="leads out") as caught:
            read_text(volume / way, within=volume, limit=LIMIT)
        assert "canary" not in str(caught.value)


def test_a_skill_cannot_lead_out_of_the_volume(volume: Path) -> None:
    (volume / "skill").mkdir()
    (volume / "skill" / "SKILL.md").symlink_to(volume.parent / "key")
    with pytest.raises(UnreadableSkill, match="leads out"):
        read_skill(volume / "skill", within=volume)


def test_what_cannot_be_read_is_named_with_its_cause(volume: Path) -> None:
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
        with pytest.raises(Unreadable, match=cause):
            read_text(volume / name, within=volume, limit=LIMIT)


def test_a_folder_that_may_not_be_looked_at_is_an_unreadable_skill(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", refuse)
    with pytest.raises(UnreadableSkill):
        read_skill(Path("/nowhere/skill"))
