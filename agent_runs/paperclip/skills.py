"""Selects the skills of a run from those that Paperclip offers.

A skill is a folder with a SKILL.md on Paperclip's data volume. Paperclip's own operational skill is always selected:
without it an agent does not know how to report. Source: Paperclip 2026.916.1, adapter-utils and the bundled adapters.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from agent_runs.contracts.request import DesiredSkill, RuntimeSkill, SkillSync

OPERATIONAL: Final = "paperclipai/paperclip/paperclip"
NAME_LIMIT: Final = 100
"""Characters of a skill's name in the prompt."""
FOLDERS_LIMIT: Final = 512 * 1024
"""Bytes of the skills that a pod gets from the worker: they share a Secret of 1 MiB with its environment."""
FILE_COST: Final = 1024
"""Bytes that a file counts beside its text: it has a key of the Secret, and an entry of the Job."""
_FILE: Final = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}"
_PATH: Final = re.compile(rf"{_FILE}(/{_FILE}){{0,7}}")
_FRONT_MATTER: Final = re.compile(r"---[ \t]*\r?\n(.*?)^---[ \t\r]*$", re.DOTALL | re.MULTILINE)
_SETTING: Final = re.compile(r"^(name|description):(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Selection:
    """The skills to read, in Paperclip's order, and warnings for people."""

    skills: tuple[RuntimeSkill, ...] = ()
    warnings: tuple[str, ...] = ()


def select(offered: Sequence[RuntimeSkill], sync: SkillSync) -> Selection:
    """The skills of one run: required ones and those the agent wants, as far as they are available."""
    wanted = _required(offered) | _desired(offered, sync).keys()
    chosen = tuple(skill for skill in offered if skill.key in wanted and _available(skill))
    unavailable = [_left_out(skill) for skill in offered if skill.key in wanted and not _available(skill)]
    unknown = [_unknown(key) for key in sorted(wanted - {skill.key for skill in offered})]
    return Selection(chosen, (*unavailable, *unknown))


def narrow(offered: Sequence[RuntimeSkill], sync: SkillSync) -> tuple[tuple[RuntimeSkill, ...], SkillSync]:
    """The part of what Paperclip offers that `select` needs for this agent.

    A company may have hundreds of skills, too many for a history. Names are resolved while all skills are known, so
    the selection stays the same.
    """
    desired = _desired(offered, sync)
    wanted = _required(offered) | desired.keys()
    kept = tuple(skill for skill in offered if skill.key in wanted)
    return kept, SkillSync(desired_skills=tuple(DesiredSkill(key=key) for key in desired))


def offered_name(text: str) -> str | None:
    """The name under which an agent finds a skill, by the text of its SKILL.md; None when it would not offer it.

    Agents offer what has a name and a description in its front matter. Source: agentskills.io; OpenCode 1.18.33,
    observed.
    """
    front_matter = _FRONT_MATTER.match(text)
    settings = dict(_SETTING.findall(front_matter[1])) if front_matter else {}
    name = settings.get("name", "").strip().strip("'\"")
    return name[:NAME_LIMIT] if name and settings.get("description", "").strip() else None


def packed(texts: Mapping[str, str], beside: Mapping[str, Mapping[str, str]]) -> tuple[dict[str, str], dict[str, str]]:
    """Folders that a pod can get, of skills that an agent would offer: their names by their skills' keys, and the texts
    of all files by path. A skill is left out whole, also if it is beyond the limit.

    Args:
        texts: of SKILL.md by the skill's key.
        beside: the other files by the key and the path in the folder.
    """
    folders, files, room = dict[str, str](), dict[str, str](), FOLDERS_LIMIT
    for key, more in beside.items():
        name = offered_name(texts.get(key, "")) or ""
        folder = {f"{name}/{path}": text for path, text in {**more, "SKILL.md": texts.get(key, "")}.items()}
        size = sum(FILE_COST + len(text.encode()) for text in folder.values())
        parents = {path[: slash.start()] for path in folder for slash in re.finditer("/", path)}
        is_new = name and "/" not in name and name not in folders.values()
        if is_new and size <= room and all(map(_PATH.fullmatch, folder)) and parents.isdisjoint(folder):
            folders[key], files, room = name, files | folder, room - size
    return folders, files


def _required(offered: Iterable[RuntimeSkill]) -> set[str]:
    return {skill.key for skill in offered if skill.required or skill.key == OPERATIONAL}


def _desired(offered: Sequence[RuntimeSkill], sync: SkillSync) -> dict[str, None]:
    wanted = (skill.key.strip().lower() for skill in sync.desired_skills or ())
    return dict.fromkeys(_resolved(name, offered) for name in wanted if name)


def _resolved(name: str, offered: Sequence[RuntimeSkill]) -> str:
    """The key that `name` means: exact, else a unique runtime name, else a unique last segment; else itself."""
    readings = (
        [skill.key for skill in offered if skill.key.lower() == name],
        [skill.key for skill in offered if (skill.runtime_name or "").lower() == name],
        [skill.key for skill in offered if _last_segment(skill.key).lower() == name],
    )
    return next((keys[0] for keys in readings if len(keys) == 1), name)


def _last_segment(key: str) -> str:
    return key.rpartition("/")[2]


def _available(skill: RuntimeSkill) -> bool:
    return bool(skill.source) and skill.source_status in (None, "available")


def _left_out(skill: RuntimeSkill) -> str:
    return f'Skill "{skill.key}" is left out: {skill.missing_detail or "Paperclip reports that its source is missing"}.'


def _unknown(key: str) -> str:
    return f'Desired skill "{key}" is not available from the Paperclip skills directory.'
