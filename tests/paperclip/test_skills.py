from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runs.contracts.request import RuntimeSkill, SkillSync
from agent_runs.paperclip.skills import FOLDERS_LIMIT, OPERATIONAL, narrow, offered_name, packed, select
from tests.paperclip.contexts import NAMES, captured, minimal, opened
from tests.support.cases import case


def skill(key: str, **fields: object) -> RuntimeSkill:
    return RuntimeSkill.model_validate({"key": key, "source": f"/skills/{key.rpartition('/')[2]}", **fields})


OFFERED = (
    skill(OPERATIONAL, runtimeName="paperclip"),
    skill("acme/tools/Review", runtimeName="review-code"),
    skill("acme/tools/deploy", runtimeName="ship"),
    skill("other/tools/deploy", runtimeName="ship"),
    skill("acme/tools/gone", sourceStatus="missing", missingDetail="deleted upstream"),
)


def keys(*desired: object) -> list[str]:
    return [found.key for found in select(OFFERED, SkillSync.model_validate({"desiredSkills": desired})).skills]


@pytest.mark.parametrize("name", NAMES)
def test_the_operational_skill_is_always_selected(name: str) -> None:
    config = opened(captured(name))[0].config
    selection = select(config.paperclip_runtime_skills, config.paperclip_skill_sync)
    desired = {"para-memory-files"} if name.startswith("ctx-4") else set()
    assert {Path(each.source or "").name for each in selection.skills} == {"paperclip"} | desired
    assert selection.warnings == ()


@pytest.mark.parametrize(
    "wanted", ["acme/tools/Review", "ACME/tools/review", " review-code ", "review", {"key": "review", "versionId": "3"}]
)
def test_a_skill_is_found_by_key_runtime_name_or_last_segment(wanted: object) -> None:
    assert keys(wanted) == [OPERATIONAL, "acme/tools/Review"]


@pytest.mark.parametrize("wanted", ["ship", "deploy", "nothing"])
def test_an_ambiguous_name_selects_nothing_and_gives_a_warning(wanted: str) -> None:
    selection = select(OFFERED, SkillSync.model_validate({"desiredSkills": [wanted]}))
    assert [found.key for found in selection.skills] == [OPERATIONAL]
    assert wanted in selection.warnings[0]


def test_a_missing_skill_is_skipped_with_a_warning_that_has_its_reason() -> None:
    selection = select(OFFERED, SkillSync.model_validate({"desiredSkills": ["gone"]}))
    assert [found.key for found in selection.skills] == [OPERATIONAL]
    assert "deleted upstream" in selection.warnings[0]


def test_each_skill_is_selected_once() -> None:
    assert keys("review", "review-code", OPERATIONAL) == [OPERATIONAL, "acme/tools/Review"]


def test_a_required_skill_is_selected_unasked() -> None:
    offered = (skill("acme/must", required=True), skill("acme/may"))
    assert [found.key for found in select(offered, SkillSync()).skills] == ["acme/must"]


@given(st.lists(st.sampled_from(["ship", "deploy", "review", "gone", "nothing", "other/tools/deploy", OPERATIONAL])))
def test_narrowing_does_not_change_the_selection(wanted: list[str]) -> None:
    sync = SkillSync.model_validate({"desiredSkills": wanted})
    assert select(*narrow(OFFERED, sync)).skills == select(OFFERED, sync).skills


def test_hundreds_of_skills_do_not_enter_a_history() -> None:
    many = [{"key": f"acme/tools/skill-{n}", "source": f"/skills/{n}"} for n in range(500)]
    request, _, _ = opened(minimal(paperclipRuntimeSkills=many, paperclipSkillSync={"desiredSkills": ["skill-7"]}))
    assert [skill.key for skill in request.config.paperclip_runtime_skills] == ["acme/tools/skill-7"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("---\nname: review\ndescription: Reviews.\n---\n# Review", "review"),
        ("---\r\nname: 'review'\r\ndescription: >\r\n  Reviews.\r\n---\r\n", "review"),
        ("---\nname: review\n---\n# Review", None),
        ("---\nname:\ndescription: Reviews.\n---\n", None),
        ("---\ndescription: Reviews.\n---\nname: review", None),
        ("# Review\n---\nname: review\ndescription: Reviews.\n---\n", None),
        ("---\nname: review\ndescription: Reviews.", None),
        ("", None),
    ],
)
def test_opencode_offers_a_skill_with_a_name_and_a_description(text: str, name: str | None) -> None:
    assert offered_name(text) == name


def named(name: str) -> str:
    return f"---\nname: {name}\ndescription: What it does.\n---\n# {name}"


def test_skills_are_packed_as_folders_of_their_names() -> None:
    texts = {"a": named("paperclip"), "b": named("alone"), "c": named("without-files")}
    folders, files = packed(texts, {"a": {"references/deep/api.md": "GET"}, "b": {}})
    assert folders == {"a": "paperclip", "b": "alone"}
    assert files == {
        "paperclip/SKILL.md": texts["a"],
        "paperclip/references/deep/api.md": "GET",
        "alone/SKILL.md": texts["b"],
    }


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "a b", "-rf", "ä", "a\tb"])
def test_a_skill_whose_name_is_no_folders_is_not_packed(name: str) -> None:
    assert packed({"a": named(name)}, {"a": {}}) == ({}, {})


@pytest.mark.parametrize(
    "path",
    ["../up", "/etc/passwd", "a//b", "a/../b", ".env", "a/..", "a/", "", "a b", "x" * 101, "a/" * 9 + "a", "a\nb"],
)
def test_a_skill_with_a_path_that_no_volume_can_have_is_not_packed(path: str) -> None:
    assert packed({"a": named("good")}, {"a": {path: "text"}}) == ({}, {})


def test_skills_of_one_name_or_beyond_the_limit_are_not_packed_nor_are_those_that_agents_would_not_offer() -> None:
    texts = {"large": named("large"), "first": named("same"), "second": named("same"), "bare": "# Bare"}
    given = {"large": {"x.md": "é" * (FOLDERS_LIMIT // 2)}, "first": {}, "second": {}, "bare": {}, "unread": {}}
    assert packed(texts, given) == ({"first": "same"}, {"same/SKILL.md": texts["first"]})


def test_a_skill_of_many_files_or_with_a_file_in_the_place_of_a_folder_is_not_packed() -> None:
    many = {f"{number}.md": "" for number in range(1000)}
    for beside in (many, {"a": "", "a/b": ""}, {"SKILL.md/a": ""}):
        with case(list(beside)[:2]):
            assert packed({"a": named("good")}, {"a": beside}) == ({}, {})
