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
from contracts.request import RunConfig
from opencode.command import command_line
from paperclip import skills
from paperclip.prompt import compose, instructions_section, join_skills
from paperclip.sealing import Opener

DATA: Final = PurePosixPath("/paperclip")
INSTRUCTIONS_LIMIT: Final = 512 * 1024
"""Bytes of an instructions file; prompt and skills share a Secret of 1 MiB with it."""


@dataclass(frozen=True)
class PromptBundling:
    """The only place that opens the sealed prompt.

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
        read = await asyncio.to_thread(self._read, config)
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

    def _read(self, config: RunConfig) -> "Readings":
        instructions, warnings = "", []
        if path := config.instructions_file_path:
            try:
                instructions = instructions_section(self._instructions(path), path)
            except (OSError, UnicodeDecodeError, ValueError):
                warnings.append(f"instructionsFilePath not readable: {path}")
        selection = skills.select(config.paperclip_runtime_skills, config.paperclip_skill_sync)
        texts = []
        for skill in selection.sources:
            try:
                texts.append(skills.read_skill(self._here(skill)))
            except skills.UnreadableSkill as unreadable:
                warnings.append(str(unreadable))
        return Readings(instructions, join_skills(texts), (*warnings, *selection.warnings))

    def _instructions(self, path: str) -> str:
        with self._here(Path(path)).open("rb") as file:
            content = file.read(INSTRUCTIONS_LIMIT + 1)
        if len(content) > INSTRUCTIONS_LIMIT:
            raise ValueError("too large")
        return content.decode("utf-8-sig").strip()

    def _here(self, path: Path) -> Path:
        """A path on Paperclip's data volume as this worker sees it."""
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
