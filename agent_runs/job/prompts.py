"""The prompt of an attempt, from the sealed request. From the same one it is the same.

Whoever wakes the agent has read the files; Paperclip's plugin does (`adapter/src/host-texts.ts`).
"""

import asyncio
import posixpath
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from agent_runs.agents.profile import AgentProfile
from agent_runs.contracts.errors import SealedFieldUnreadable
from agent_runs.contracts.identity import RunKey
from agent_runs.contracts.messages import CreateJob, QueuedMessage
from agent_runs.contracts.outcome import Interruption
from agent_runs.contracts.pod import DATA_DIRECTORY, SKILLS_DIRECTORY
from agent_runs.contracts.request import OPENCODE, PromptSource, RunConfig
from agent_runs.contracts.start import Binding, SealedMessage
from agent_runs.job.data_volume import Owner, skill_folder
from agent_runs.paperclip import skills
from agent_runs.paperclip.preparation import Preparations
from agent_runs.paperclip.prompt import (
    compose,
    instructions_section,
    interruption_section,
    join_sections,
    join_skills,
    skill_folders_section,
)
from agent_runs.paperclip.sealing import Opener


async def _outside_a_pod() -> str | None:
    return None


@dataclass(frozen=True)
class Prompt:
    """A prompt and what it consists of.

    Attributes:
        metrics: characters per section, as `PromptBundle` has them.
        skill_folders, skill_names: as `PromptBundle` has them.
    """

    text: str = field(repr=False)
    metrics: dict[str, int]
    skill_folders: tuple[str, ...]
    skill_names: tuple[str, ...]


@dataclass(frozen=True)
class Prompts:
    """Composes prompts.

    Attributes:
        opener: opens messages of people.
        data_claim: reads the claim of the volume that pods mount at `/paperclip`; None: pods have none.
        agents: the profiles of agents other than OpenCode.
    """

    preparations: Preparations
    opener: Opener
    data_claim: Callable[[], Awaitable[str | None]] = _outside_a_pod
    agents: Mapping[str, AgentProfile] = field(default_factory=dict)

    async def compose(
        self,
        run: RunKey,
        config: RunConfig,
        *,
        resuming: bool,
        messages: Sequence[QueuedMessage] = (),
        continues: bool = False,
        interruption: Interruption | None = None,
    ) -> Prompt:
        """Composes the sections in Paperclip's order. A skill is not among them if the agent can have its folder.

        Args:
            messages: come last.
            continues: the agent has done what it was woken for: a session that is resumed gets only the messages.
            interruption: a session that is resumed learns what the loss of its pod has interrupted.

        Raises:
            SealedFieldUnreadable: sealed with a key that this worker does not hold.
            PodIntrospectionFailed: the worker's pod cannot be read, or lacks a container.
            ClusterUnavailable: the API server refused or timed out.
        """
        source = (await self.preparations.current()).prompt
        path = config.instructions_file_path or ""
        folders = await self._folders(config, source, Owner(run.company_id, run.agent_id))
        paths = {each.name: posixpath.join(DATA_DIRECTORY, each.path) for each in folders.values()}
        inline = [text for key, text in source.skills.items() if key not in folders]
        texts = [await asyncio.to_thread(self._text, run, message) for message in messages]
        prompt = compose(
            source,
            interruption=interruption_section(config.workspace, interruption.tools)
            if interruption and resuming
            else "",
            instructions=instructions_section(source.instructions, path) if source.instructions else "",
            skills=join_skills([*inline, skill_folders_section(paths)]),
            messages=join_sections(texts),
            resuming=resuming,
            continues=continues,
            run=run,
        )
        return Prompt(
            prompt.text,
            prompt.metrics,
            tuple(each.path for each in folders.values()),
            tuple(each.name for each in folders.values()),
        )

    def _text(self, run: RunKey, message: QueuedMessage) -> str:
        """The text of a message. One that cannot be opened does not end a run whose agent has done its work."""
        try:
            return self.opener.open(message.sealed, SealedMessage, Binding.of_message(run, message.id)).text
        except SealedFieldUnreadable:
            return f"(A message of {message.by} cannot be read: it was sealed for another use or with another key.)"

    async def of(self, input: CreateJob) -> str:
        """The prompt's text for an attempt whose prompt was composed before."""
        prompt = await self.compose(input.attempt.run, input.config, resuming=input.session is not None)
        return prompt.text

    async def _folders(self, config: RunConfig, source: PromptSource, owner: Owner) -> dict[str, "SkillFolder"]:
        """The folders of those skills that an agent would offer from there, by Paperclip's key; each name once."""
        if config.skills != "folders":
            return {}
        profile = self.agents.get(config.agent)
        sent = source.skill_folders if config.agent == OPENCODE or (profile and profile.skills) else {}
        has_volume = config.workspace != "carried" and await self.data_claim() is not None
        found: dict[str, SkillFolder] = {}
        for skill in config.paperclip_runtime_skills:
            path = skill_folder(skill.source or "", owner) if has_volume else None
            if path is None and skill.key in sent:
                path = f"{SKILLS_DIRECTORY}/{sent[skill.key]}"
            name = skills.offered_name(source.skills.get(skill.key, ""))
            if path and name and name not in {each.name for each in found.values()}:
                found[skill.key] = SkillFolder(name, path)
        return found


class SkillFolder(NamedTuple):
    """A skill that the agent gets as a folder.

    Attributes:
        name: as the agent offers it.
        path: as `PromptBundle.skill_folders` has it.
    """

    name: str
    path: str
