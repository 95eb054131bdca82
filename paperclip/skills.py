"""Which of the skills that Paperclip offers go to an agent, and what to say about those that cannot.

A skill is a folder with a SKILL.md on Paperclip's data volume. Paperclip's own operational skill always goes along:
without it an agent does not know how to report. Source: Paperclip 2026.916.1, adapter-utils and the bundled adapters.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from contracts.request import DesiredSkill, RuntimeSkill, SkillSync
from paperclip.javascript import trim
from paperclip.reading import Unreadable, is_folder, read_text

OPERATIONAL: Final = "paperclipai/paperclip/paperclip"
SKILL_LIMIT: Final = 256 * 1024
"""Bytes of one skill; all of them and the prompt share a Secret of 1 MiB."""


class UnreadableSkill(ValueError):
    """A skill's text cannot be had. The message names the file and the cause, for a warning."""


@dataclass(frozen=True)
class Selection:
    """The skills to read, in Paperclip's order, and warnings for people."""

    skills: tuple[RuntimeSkill, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def sources(self) -> tuple[Path, ...]:
        """Where their texts are."""
        return tuple(Path(skill.source) for skill in self.skills if skill.source)


def select(offered: Sequence[RuntimeSkill], sync: SkillSync) -> Selection:
    """The skills of one run: required ones and those the agent wants, as far as they are available."""
    wanted = _required(offered) | _desired(offered, sync).keys()
    chosen = tuple(skill for skill in offered if skill.key in wanted and _available(skill))
    lost = [_lost(skill) for skill in offered if skill.key in wanted and not _available(skill)]
    unknown = [_unknown(key) for key in sorted(wanted - {skill.key for skill in offered})]
    return Selection(chosen, (*lost, *unknown))


def narrowed(offered: Sequence[RuntimeSkill], sync: SkillSync) -> tuple[tuple[RuntimeSkill, ...], SkillSync]:
    """What `select` needs of all that Paperclip offers: a company may have hundreds of skills, a history no room.

    Names are resolved while all skills are known, so the selection stays the same.
    """
    desired = _desired(offered, sync)
    wanted = _required(offered) | desired.keys()
    kept = tuple(skill for skill in offered if skill.key in wanted)
    return kept, SkillSync(desired_skills=tuple(DesiredSkill(key=key) for key in desired))


def read_skill(source: Path, within: Path | None = None) -> str:
    """The trimmed text of a skill: SKILL.md in the folder `source`, else `source` itself as a file.

    `within` is where it must really be, such as the data volume.

    Raises:
        UnreadableSkill: missing, outside `within`, not a regular file, larger than `SKILL_LIMIT`, or not UTF-8.
    """
    path = source / "SKILL.md" if is_folder(source) else source
    try:
        return trim(read_text(path, within=within, limit=SKILL_LIMIT))
    except Unreadable as cause:
        raise UnreadableSkill(f"skill not readable: {cause}") from None


def snapshot(offered: Sequence[RuntimeSkill], sync: SkillSync, installed: Iterable[str] = ()) -> dict[str, Any]:
    """What Paperclip's skills page shows: every known skill and its state, sorted by key, in Paperclip's spelling.

    `installed` are names of folders in the agent's own skills home that Paperclip does not manage.
    """
    required = _required(offered)
    desired = required | _desired(offered, sync).keys()
    known = {skill.key for skill in offered}
    names = known | {skill.runtime_name for skill in offered if skill.runtime_name}
    names |= {_last_segment(key) for key in known}
    unknown = sorted(desired - known)
    entries = [
        *(_managed(skill, desired=skill.key in desired, required=skill.key in required) for skill in offered),
        *(_absent(key) for key in unknown),
        *(_external(name) for name in sorted(set(installed)) if name not in names),
    ]
    return {
        "adapterType": "opencode_k8s",
        "supported": True,
        "mode": "ephemeral",
        "desiredSkills": sorted(desired),
        "entries": sorted(entries, key=lambda entry: str(entry["key"])),
        "warnings": [_unknown(key) for key in unknown],
    }


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


def _lost(skill: RuntimeSkill) -> str:
    return f'Skill "{skill.key}" is left out: {skill.missing_detail or "Paperclip says that its source is missing"}.'


def _unknown(key: str) -> str:
    return f'Desired skill "{key}" is not available from the Paperclip skills directory.'


def _state(skill: RuntimeSkill, *, desired: bool) -> str:
    if not _available(skill):
        return "missing"
    return "configured" if desired else "available"


def _managed(skill: RuntimeSkill, *, desired: bool, required: bool) -> dict[str, Any]:
    return {
        "key": skill.key,
        "runtimeName": skill.runtime_name or _last_segment(skill.key),
        "desired": desired,
        "managed": True,
        "state": _state(skill, desired=desired),
        "required": required,
        "requiredReason": "Paperclip's own skill: the agent reports through it." if required else None,
        "origin": "paperclip_required" if required else "company_managed",
        "originLabel": "Required by Paperclip" if required else "Managed by Paperclip",
        "readOnly": False,
        "sourcePath": skill.source,
        "targetPath": None,
        "detail": skill.missing_detail or ("Goes into the prompt of each Kubernetes Job." if desired else None),
    }


def _absent(key: str) -> dict[str, Any]:
    return {
        "key": key,
        "runtimeName": None,
        "desired": True,
        "managed": True,
        "state": "missing",
        "origin": "external_unknown",
        "originLabel": "External or unavailable",
        "readOnly": False,
        "sourcePath": None,
        "targetPath": None,
        "detail": "Paperclip offers no skill of this name.",
    }


def _external(name: str) -> dict[str, Any]:
    return {
        "key": name,
        "runtimeName": name,
        "desired": False,
        "managed": False,
        "state": "external",
        "origin": "user_installed",
        "originLabel": "User-installed",
        "locationLabel": "~/.claude/skills",
        "readOnly": True,
        "sourcePath": None,
        "targetPath": f"/paperclip/.claude/skills/{name}",
        "detail": "Installed outside Paperclip's management.",
    }
