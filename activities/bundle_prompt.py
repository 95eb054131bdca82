"""Composes the prompt and puts it into a Secret; what enters the history is where it is and what it is made of."""

import asyncio
import hashlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from temporalio import activity

from activities.requests import Requests
from cluster.port import Cluster
from cluster.secrets import prompt_secret
from contracts.messages import BundlePrompt, PromptBundle
from contracts.request import PromptSource, RunConfig
from opencode.command import command_line
from paperclip import skills
from paperclip.prompt import compose, instructions_section, join_skills
from paperclip.reading import Unreadable, read_text
from paperclip.sealing import Opener

DATA: Final = PurePosixPath("/paperclip")
INSTRUCTIONS_LIMIT: Final = 512 * 1024
"""Bytes of an instructions file; prompt and skills share a Secret of 1 MiB with it."""


@dataclass(frozen=True)
class PromptBundling:
    """The only place that opens the sealed prompt. Files are read below `data_root` and nowhere else: agents can write
    there, and the worker has files that they must not see.

    Attributes:
        data_root: where this worker sees what pods see at `/paperclip`.
    """

    cluster: Cluster
    requests: Requests
    opener: Opener
    data_root: Path

    @activity.defn
    async def bundle_prompt(self, order: BundlePrompt) -> PromptBundle:
        """Reads instructions and skills, composes the sections in Paperclip's order, stores the prompt in a Secret.

        What cannot be read is a warning, as in the existing adapters: the run goes on without it.

        Raises:
            InvalidRequest: `extraArgs` that OpenCode would misread; found here, before any object exists.
            SealedFieldUnreadable: the sealing key is another one.
            PromptTooLarge: the prompt does not fit into a Secret.
            JobCreateFailed: Kubernetes refuses the Secret.
            ClusterUnavailable: the API server refused or timed out; Temporal tries again.
        """
        config = order.config
        command_line(model=config.model, directory="/", title="check", extra_args=config.extra_args)
        source = self.opener.prompt(await self.requests.current())
        read = await asyncio.to_thread(self._read, config, source)
        prompt = compose(
            source, instructions=read.instructions, skills=read.skills, resuming=order.resuming, run=order.attempt.run
        )
        namespace = config.namespace or self.cluster.namespace
        text = prompt.text.encode()
        await self.cluster.put_secret(prompt_secret(order.attempt, namespace, text))
        return PromptBundle(
            namespace=namespace,
            secret_name=order.attempt.prompt_secret_name,
            sha256=hashlib.sha256(text).hexdigest(),
            size=len(text),
            metrics=prompt.metrics,
            warnings=read.warnings,
        )

    def _read(self, config: RunConfig, source: PromptSource) -> "Readings":
        instructions, told = self._instructions(config, source)
        skills_text, lost = self._skills(config, source)
        return Readings(instructions, skills_text, (*told, *lost))

    def _instructions(self, config: RunConfig, source: PromptSource) -> tuple[str, list[str]]:
        path = config.instructions_file_path
        if source.instructions is not None:
            return instructions_section(source.instructions, path or ""), []
        if path is None:
            return "", []
        try:
            text = read_text(self._here(Path(path)), within=self.data_root, limit=INSTRUCTIONS_LIMIT)
        except Unreadable as cause:
            return "", [f"instructionsFilePath not readable: {path}: {cause}"]
        return instructions_section(text, path), []

    def _skills(self, config: RunConfig, source: PromptSource) -> tuple[str, list[str]]:
        if source.skills is not None:
            return join_skills(source.skills), []
        selection = skills.select(config.paperclip_runtime_skills, config.paperclip_skill_sync)
        texts, warnings = [], list(selection.warnings)
        for skill in selection.sources:
            try:
                texts.append(skills.read_skill(self._here(skill), within=self.data_root))
            except skills.UnreadableSkill as unreadable:
                warnings.append(str(unreadable))
        return join_skills(texts), warnings

    def _here(self, path: Path) -> Path:
        """A path on Paperclip's data volume as this worker sees it; any other path is refused by `within`."""
        try:
            return self.data_root / path.relative_to(DATA)
        except ValueError:
            return path


@dataclass(frozen=True)
class Readings:
    """What was read for the prompt, and what could not be."""

    instructions: str
    skills: str
    warnings: tuple[str, ...]
