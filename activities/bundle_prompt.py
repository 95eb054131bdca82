"""Composes the prompt and puts it into a Secret; only its place and its metrics enter the history."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from temporalio import activity

from agent_runs.contracts.messages import BundlePrompt, PromptBundle
from agent_runs.contracts.pod import DATA_DIRECTORY
from agent_runs.contracts.request import PromptSource, RunConfig, RuntimeSkill
from agent_runs.job.data_volume import Owner, skill_folder
from agent_runs.job.secrets import prompt_secret
from agent_runs.kube.port import Cluster
from agent_runs.paperclip import skills
from agent_runs.paperclip.preparation import Preparations
from agent_runs.paperclip.prompt import compose, instructions_section, join_skills, skill_folders_section
from agent_runs.paperclip.safe_files import OwnFiles, UnreadableFile

INSTRUCTIONS_LIMIT: Final = 512 * 1024
"""Bytes of an instructions file; prompt and skills share a Secret of 1 MiB with it."""


async def _outside_a_pod() -> str | None:
    return None


@dataclass(frozen=True)
class BundlePromptActivity:
    """Reads only this agent's own files below `data_root`: an agent can put links there, and the worker has files that
    agents must not see.

    Attributes:
        data_root: the worker's path of the volume that pods mount at `/paperclip`.
        data_claim: reads the claim of that volume; None: pods have none.
    """

    cluster: Cluster
    preparations: Preparations
    data_root: Path
    data_claim: Callable[[], Awaitable[str | None]] = _outside_a_pod

    @activity.defn
    async def bundle_prompt(self, input: BundlePrompt) -> PromptBundle:
        """Reads instructions and skills, composes the sections in Paperclip's order, stores the prompt in a Secret.

        A file that cannot be read is a warning, as in the existing adapters: the run continues without it. A skill is
        not in the prompt if OpenCode can have its folder.

        Raises:
            SealedFieldUnreadable: sealed with a key that this worker does not hold.
            PromptTooLarge: the prompt does not fit into a Secret.
            JobCreateFailed: Kubernetes refused the Secret.
            PodIntrospectionFailed: the worker's pod is none that could be read.
            ClusterUnavailable: the API server refused or timed out; retried.
        """
        config = input.config
        source = (await self.preparations.current()).prompt
        run = input.attempt.run
        files = OwnFiles(self.data_root, run.company_id, run.agent_id)
        folders = config.skills == "folders" and await self.data_claim() is not None
        owner = Owner(run.company_id, run.agent_id) if folders else None
        texts = await asyncio.to_thread(self._read_texts, config, source, files, owner)
        prompt = compose(source, instructions=texts.instructions, skills=texts.skills, resuming=input.resuming, run=run)
        namespace = config.namespace or self.cluster.namespace
        text = prompt.text.encode()
        await self.cluster.put_secret(prompt_secret(input.attempt, namespace, text))
        return PromptBundle(
            namespace=namespace,
            secret_name=input.attempt.prompt_secret_name,
            sha256=hashlib.sha256(text).hexdigest(),
            size=len(text),
            metrics=prompt.metrics,
            warnings=texts.warnings,
            skill_folders=texts.skill_folders,
        )

    def _read_texts(
        self, config: RunConfig, source: PromptSource, files: OwnFiles, owner: Owner | None
    ) -> "PromptTexts":
        """Reads everything; the folders of skills are left to OpenCode if there is an `owner` who may have them."""
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
        )

    def _folders(self, selection: skills.Selection, owner: Owner, files: OwnFiles) -> Sequence["SkillFolder"]:
        """The folders of those skills that OpenCode would offer from there, each name once."""
        found: dict[str, SkillFolder] = {}
        for skill in selection.skills:
            path = skill_folder(skill.source or "", owner)
            if path is None:
                continue
            try:
                text = files.skill(self.data_root / path / "SKILL.md", skills.SKILL_LIMIT)
            except UnreadableFile:
                continue
            if name := skills.name_for_opencode(text):
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


class SkillFolder(NamedTuple):
    """A skill that OpenCode gets as a folder.

    Attributes:
        key: Paperclip's.
        name: OpenCode's.
        path: relative to the data volume.
    """

    key: str
    name: str
    path: str
