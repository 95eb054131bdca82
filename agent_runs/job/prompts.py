"""The prompt of an attempt, from the sealed request and from this agent's files. From the same ones it is the same."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from agent_runs.contracts.identity import RunKey
from agent_runs.contracts.messages import CreateJob
from agent_runs.contracts.pod import DATA_DIRECTORY
from agent_runs.contracts.request import PromptSource, RunConfig, RuntimeSkill
from agent_runs.job.data_volume import Owner, skill_folder
from agent_runs.paperclip import skills
from agent_runs.paperclip.preparation import Preparations
from agent_runs.paperclip.prompt import compose, instructions_section, join_skills, skill_folders_section
from agent_runs.paperclip.safe_files import OwnFiles, UnreadableFile

INSTRUCTIONS_LIMIT: Final = 512 * 1024
"""Bytes of an instructions file; prompt and skills share a Secret of 1 MiB with it."""


async def _outside_a_pod() -> str | None:
    return None


@dataclass(frozen=True)
class Prompt:
    """A prompt and what it consists of.

    Attributes:
        metrics: characters per section, as `PromptBundle` has them.
        warnings: for people, such as instructions that could not be read.
        skill_folders: of the skills that the agent gets as folders, relative to the data volume.
        skill_names: of the same skills.
    """

    text: str = field(repr=False)
    metrics: dict[str, int]
    warnings: tuple[str, ...]
    skill_folders: tuple[str, ...]
    skill_names: tuple[str, ...]


@dataclass(frozen=True)
class Prompts:
    """Reads only this agent's own files below `data_root`: an agent can put links there, and the worker has files that
    agents must not see.

    Attributes:
        data_root: the worker's path of the volume that pods mount at `/paperclip`.
        data_claim: reads the claim of that volume; None: pods have none.
    """

    preparations: Preparations
    data_root: Path
    data_claim: Callable[[], Awaitable[str | None]] = _outside_a_pod

    async def compose(self, run: RunKey, config: RunConfig, *, resuming: bool) -> Prompt:
        """Reads instructions and skills, and composes the sections in Paperclip's order.

        A file that cannot be read is a warning, as in the existing adapters: the run continues without it. A skill is
        not in the prompt if the agent can have its folder.

        Raises:
            SealedFieldUnreadable: sealed with a key that this worker does not hold.
            PodIntrospectionFailed: the worker's pod is none that could be read.
            ClusterUnavailable: the API server refused or timed out.
        """
        source = (await self.preparations.current()).prompt
        files = OwnFiles(self.data_root, run.company_id, run.agent_id)
        folders = config.skills == "folders" and await self.data_claim() is not None
        owner = Owner(run.company_id, run.agent_id) if folders else None
        texts = await asyncio.to_thread(self._read_texts, config, source, files, owner)
        prompt = compose(source, instructions=texts.instructions, skills=texts.skills, resuming=resuming, run=run)
        return Prompt(prompt.text, prompt.metrics, texts.warnings, texts.skill_folders, texts.skill_names)

    async def of(self, input: CreateJob) -> str:
        """The prompt's text for an attempt whose prompt was composed before."""
        prompt = await self.compose(input.attempt.run, input.config, resuming=input.session is not None)
        return prompt.text

    def _read_texts(
        self, config: RunConfig, source: PromptSource, files: OwnFiles, owner: Owner | None
    ) -> "PromptTexts":
        """Reads everything; the folders of skills are left to the agent if there is an `owner` who may have them."""
        instructions, warnings = self._instructions(config, source, files)
        selection = skills.select(config.paperclip_runtime_skills, config.paperclip_skill_sync)
        folders = self._folders(selection, owner, files) if owner else ()
        in_folders = {each.key for each in folders}
        inline = [skill for skill in selection.skills if skill.key not in in_folders]
        texts, unreadable = self._skills(inline, source, files)
        if source.skills is None:
            warnings += selection.warnings
        paths = {each.name: f"{DATA_DIRECTORY}/{each.path}" for each in folders}
        return PromptTexts(
            instructions,
            join_skills([*texts, skill_folders_section(paths)]),
            (*warnings, *unreadable),
            tuple(each.path for each in folders),
            tuple(each.name for each in folders),
        )

    def _folders(self, selection: skills.Selection, owner: Owner, files: OwnFiles) -> Sequence["SkillFolder"]:
        """The folders of those skills that an agent would offer from there, each name once."""
        found: dict[str, SkillFolder] = {}
        for skill in selection.skills:
            path = skill_folder(skill.source or "", owner)
            if path is None:
                continue
            try:
                text = files.skill(self.data_root / path / "SKILL.md", skills.SKILL_LIMIT)
            except UnreadableFile:
                continue
            if name := skills.offered_name(text):
                found.setdefault(name, SkillFolder(skill.key, name, path))
        return tuple(found.values())

    def _instructions(self, config: RunConfig, source: PromptSource, files: OwnFiles) -> tuple[str, list[str]]:
        path = config.instructions_file_path
        if source.instructions is not None:
            return instructions_section(source.instructions, path or ""), []
        if path is None:
            return "", []
        try:
            text = files.instructions(self._worker_path(Path(path)), INSTRUCTIONS_LIMIT)
        except UnreadableFile as cause:
            return "", [f"instructionsFilePath not readable: {path}: {cause}"]
        return instructions_section(text, path), []

    def _skills(
        self, chosen: Sequence[RuntimeSkill], source: PromptSource, files: OwnFiles
    ) -> tuple[list[str], list[str]]:
        if source.skills is not None:
            return [source.skills.get(skill.key, "") for skill in chosen], []
        texts, warnings = [], []
        for skill in chosen:
            try:
                texts.append(skills.read_skill(self._worker_path(Path(skill.source or "")), files))
            except skills.UnreadableSkill as unreadable:
                warnings.append(str(unreadable))
        return texts, warnings

    def _worker_path(self, path: Path) -> Path:
        """The worker's path of a file on the data volume; other paths are returned as they are, and refused."""
        try:
            return self.data_root / path.relative_to(DATA_DIRECTORY)
        except ValueError:
            return path


@dataclass(frozen=True)
class PromptTexts:
    """The texts that were read for the prompt, and warnings about those that could not be."""

    instructions: str
    skills: str
    warnings: tuple[str, ...]
    skill_folders: tuple[str, ...]
    skill_names: tuple[str, ...]


class SkillFolder(NamedTuple):
    """A skill that the agent gets as a folder.

    Attributes:
        key: Paperclip's.
        name: as the agent offers it.
        path: relative to the data volume.
    """

    key: str
    name: str
    path: str
