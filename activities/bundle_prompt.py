"""Composes the prompt and puts it into a Secret; only its place and its metrics enter the history."""

import asyncio
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from temporalio import activity

from agent_runs.contracts.messages import BundlePrompt, PromptBundle
from agent_runs.contracts.pod import DATA_DIRECTORY
from agent_runs.contracts.request import PromptSource, RunConfig
from agent_runs.job.secrets import prompt_secret
from agent_runs.kube.port import Cluster
from agent_runs.paperclip import skills
from agent_runs.paperclip.preparation import Preparations
from agent_runs.paperclip.prompt import compose, instructions_section, join_skills
from agent_runs.paperclip.safe_files import OwnFiles, UnreadableFile

INSTRUCTIONS_LIMIT: Final = 512 * 1024
"""Bytes of an instructions file; prompt and skills share a Secret of 1 MiB with it."""


@dataclass(frozen=True)
class BundlePromptActivity:
    """Reads only this agent's own files below `data_root`: an agent can put links there, and the worker has files that
    agents must not see.

    Attributes:
        data_root: the worker's path of the volume that pods mount at `/paperclip`.
    """

    cluster: Cluster
    preparations: Preparations
    data_root: Path

    @activity.defn
    async def bundle_prompt(self, input: BundlePrompt) -> PromptBundle:
        """Reads instructions and skills, composes the sections in Paperclip's order, stores the prompt in a Secret.

        A file that cannot be read is a warning, as in the existing adapters: the run continues without it.

        Raises:
            SealedFieldUnreadable: sealed with a key that this worker does not hold.
            PromptTooLarge: the prompt does not fit into a Secret.
            JobCreateFailed: Kubernetes refused the Secret.
            ClusterUnavailable: the API server refused or timed out; retried.
        """
        config = input.config
        source = (await self.preparations.current()).prompt
        run = input.attempt.run
        files = OwnFiles(self.data_root, run.company_id, run.agent_id)
        texts = await asyncio.to_thread(self._read_texts, config, source, files)
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
        )

    def _read_texts(self, config: RunConfig, source: PromptSource, files: OwnFiles) -> "PromptTexts":
        instructions, instructions_warnings = self._instructions(config, source, files)
        skills_text, skills_warnings = self._skills(config, source, files)
        return PromptTexts(instructions, skills_text, (*instructions_warnings, *skills_warnings))

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

    def _skills(self, config: RunConfig, source: PromptSource, files: OwnFiles) -> tuple[str, list[str]]:
        if source.skills is not None:
            return join_skills(source.skills), []
        selection = skills.select(config.paperclip_runtime_skills, config.paperclip_skill_sync)
        texts, warnings = [], list(selection.warnings)
        for skill in selection.sources:
            try:
                texts.append(skills.read_skill(self._worker_path(skill), files))
            except skills.UnreadableSkill as unreadable:
                warnings.append(str(unreadable))
        return join_skills(texts), warnings

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
