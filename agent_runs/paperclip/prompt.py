"""Composes the prompt of one attempt in Paperclip's order, with Paperclip's metrics.

Sections: instructions, skills, bootstrap, wake, task, session handoff, heartbeat; each trimmed, empty ones dropped,
joined by one blank line. Wake prose arrives as text: the caller renders it, for a resumed session and for a fresh one.
Source: Paperclip's adapter-utils 2026.916.1 and the existing adapters' tests.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from agent_runs.contracts.identity import RunKey
from agent_runs.contracts.request import PromptSource
from agent_runs.paperclip.javascript import WHITESPACE, length, number, stringify, trim, well_formed

DEFAULT_HEARTBEAT_PROMPT: Final = "You are agent {{agent.id}} ({{agent.name}}). Continue your Paperclip work."
"""The heartbeat sentence of an agent without a template of its own."""

_AFTER_A_LOSS: Final = {
    "carried": (
        "The files and this session are as they were at the last checkpoint: what you have done to them since is gone, "
        "what you have done elsewhere is not"
    ),
    "ephemeral": "Its files are gone",
}
_UNKNOWN_EFFECTS: Final = "What it has done may be half done"
SKILL_SEPARATOR: Final = "\n\n---\n\n"
SECTION_SEPARATOR: Final = "\n\n"
_PLACEHOLDER: Final = re.compile(rf"\{{\{{[{WHITESPACE}]*([A-Za-z0-9_.-]+)[{WHITESPACE}]*\}}\}}")


@dataclass(frozen=True)
class Prompt:
    """The prompt and what it is made of.

    Attributes:
        text: goes to OpenCode's standard input.
        metrics: UTF-16 code units per section, under Paperclip's names.
    """

    text: str = field(repr=False)
    metrics: dict[str, int]


def compose(
    source: PromptSource,
    *,
    instructions: str = "",
    skills: str = "",
    interruption: str = "",
    messages: str = "",
    resuming: bool,
    continues: bool = False,
    run: RunKey,
) -> Prompt:
    """The prompt of one attempt.

    A resumed session has its bootstrap already. When the wake has prose for it, the heartbeat is left out too.

    Args:
        source: templates and prose of this wake.
        instructions: the agent's instructions file, as `instructions_section` gives it.
        skills: the skills, as `join_skills` gives them.
        interruption: what the loss of the pod has interrupted, as `interruption_section` gives it.
        messages: what people have sent the agent.
        resuming: whether this attempt resumes a session.
        continues: whether the agent has done what it was woken for.
        run: the ids that templates may name.
    """
    data = template_data(source, run)
    wake = source.wake.resumed if resuming else source.wake.fresh
    heartbeat = "" if resuming and trim(wake) else render(source.prompt_template or DEFAULT_HEARTBEAT_PROMPT, data)
    sections = {
        "instructionsChars": instructions,
        "skillsBundleChars": skills,
        "bootstrapPromptChars": "" if resuming else render(source.bootstrap_template or "", data),
        "wakePromptChars": wake,
        "taskMarkdownChars": source.task_markdown,
        "sessionHandoffChars": source.session_handoff,
        "heartbeatPromptChars": heartbeat,
    }
    if interruption:
        sections["interruptionChars"] = interruption
    if messages:
        sections = {} if resuming and continues else sections
        sections["messagesChars"] = messages
    trimmed = {name: trim(well_formed(section)) for name, section in sections.items()}
    text = join_sections(trimmed.values())
    return Prompt(text, {"promptChars": length(text)} | {name: length(part) for name, part in trimmed.items()})


def template_data(source: PromptSource, run: RunKey) -> dict[str, Any]:
    """What a template may name."""
    prose = {
        "paperclipTaskMarkdown": source.task_markdown,
        "paperclipSessionHandoffMarkdown": source.session_handoff,
    }
    return {
        "agentId": run.agent_id,
        "companyId": run.company_id,
        "runId": run.run_id,
        "company": {"id": run.company_id},
        "agent": {**source.agent, "id": run.agent_id, "companyId": run.company_id},
        "run": {"id": run.run_id, "source": "on_demand"},
        "context": {**source.context, **{name: text for name, text in prose.items() if text}},
    }


def join_sections(sections: Iterable[str], separator: str = SECTION_SEPARATOR) -> str:
    """The sections, trimmed, without the empty ones."""
    return separator.join(part for section in sections if (part := trim(section)))


def join_skills(skills: Iterable[str]) -> str:
    """The skills bundle: each skill trimmed, empty ones dropped, a rule between them."""
    return join_sections(skills, SKILL_SEPARATOR)


def skill_folders_section(folders: Mapping[str, str]) -> str:
    """Where skills are that the agent has as folders. Some have no tool for skills; OpenCode's needs ripgrep."""
    listed = "; ".join(f"{name} in {path}" for name, path in folders.items())
    return (
        f"(Load these skills with the skill tool, or read the SKILL.md in their folders: {listed}.)" if listed else ""
    )


def interruption_section(workspace: str, tools: Sequence[str]) -> str:
    """What a session has to know that goes on after the loss of its pod.

    Args:
        tools: calls that were at work. Their texts are the agent's, so each is quoted.
    """
    named = ", ".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    at_work = f" while this was at work: {named}" if tools else ""
    effects = _AFTER_A_LOSS.get(workspace, _UNKNOWN_EFFECTS)
    return f"(Your pod was lost{at_work}. {effects}. Look at what is there before you repeat anything.)"


def instructions_section(text: str, path: str) -> str:
    """The agent's instructions and where they come from, so that it can resolve what they refer to."""
    kept = trim(text)
    if not kept:
        return ""
    folder = path.rpartition("/")[0] or "/"
    return f"{kept}\n\n(These instructions were read from {path}; relative paths in them start at {folder}.)"


def render(template: str, data: Mapping[str, Any]) -> str:
    """`template` with each `{{dotted.path}}` replaced; what cannot be found becomes nothing.

    What is put in is not rendered again. Texts are put in as they are, numbers and booleans as JavaScript writes
    them, objects and lists as compact JSON; no path goes through a list.
    """
    return _PLACEHOLDER.sub(lambda match: _text(_walk(data, match[1])), template)


def _walk(data: Mapping[str, Any], path: str) -> Any:
    place: Any = data
    for step in path.split("."):
        if not isinstance(place, Mapping):
            return None
        place = place.get(step)
    return place


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return number(value) if isinstance(value, int | float) else stringify(value)
