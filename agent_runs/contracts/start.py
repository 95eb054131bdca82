"""How a run is started, and what is sealed for it.

A caller starts the workflow with `RunStart`: a few readable ids, and one sealed text. The sealed text is a compact JWE
(`agent_runs.paperclip.sealing`) of `SealedRun`, which holds Paperclip's whole execution context and the texts that only
Paperclip's process can render or read. Each sealed plaintext begins with a `Binding`: whoever copies the sealed text
elsewhere is refused when it is opened.
"""

from typing import Any, ClassVar, Final, Literal, Self

from pydantic import ConfigDict, Field

from agent_runs.contracts.base import PaperclipContract
from agent_runs.contracts.identity import RunKey, workflow_id
from agent_runs.contracts.request import Identifier, OptionalText, SealedText, Seconds, ShortTexts, WakePrompt

MESSAGE_LIMIT: Final = 16 * 1024
"""Characters of a message for an agent that works."""
Purpose = Literal["run", "join", "check", "message"]


class Binding(PaperclipContract):
    """What a sealed text may be used for. It is part of the plaintext, so only who seals can choose it.

    Attributes:
        purpose: `run`: to start a run; `join`: to give a run the tokens of a later wake; `check`: to check an agent's
            configuration; `message`: to tell the agent of a run something.
        workflow_id: of the only workflow that may open it.
        run_id: Paperclip's id of the wake; of a check the id that the caller chose for it.
        task: as the start or the join names it; of a message its id.
    """

    purpose: Purpose
    workflow_id: str
    company_id: str
    run_id: str
    task: str | None = None

    @classmethod
    def of_message(cls, run: RunKey, message_id: str) -> Self:
        """For a message to the agent of this run."""
        return cls(
            purpose="message",
            workflow_id=workflow_id(run.agent_id),
            company_id=run.company_id,
            run_id=run.run_id,
            task=message_id,
        )


class ToolServer(PaperclipContract):
    """A tool server that Paperclip offers to the run, at Paperclip's own address of it."""

    name: str
    url: str
    token: str | None = Field(default=None, repr=False)


class HostTexts(PaperclipContract):
    """What only the process of Paperclip's server knows; the defaults are those of a caller that is somewhere else.

    Attributes:
        wake_prompt, wake_payload: the wake as Paperclip's own helpers render it, as prose and as JSON.
        heartbeat_template: Paperclip's own template for this kind of wake, for an agent that has none.
        repair_wake: Paperclip's own helper says that the wake asks for a repair: the agent then gets no heartbeat.
        instructions: the text of the configured instructions file; None: nobody has read it.
        skills: texts of skills by key; None: nobody has read them.
        skill_files: of skills that come with Paperclip, the texts of the files beside SKILL.md, by key and path.
        tool_servers: as Paperclip offers them.
        address: Paperclip's address as its own process knows it.
        pods_address: Paperclip's address as pods reach it, by the setting of that process.
        opencode_providers: that process's `PAPERCLIP_OPENCODE_PROVIDERS`, as text, with the variables that it names.
        notes: for people, such as a file that cannot be read.
    """

    wake_prompt: WakePrompt = WakePrompt()
    wake_payload: str | None = None
    heartbeat_template: str | None = None
    repair_wake: bool = False
    instructions: str | None = None
    skills: dict[str, str] | None = None
    skill_files: dict[str, dict[str, str]] = {}
    tool_servers: tuple[ToolServer, ...] = ()
    address: OptionalText = None
    pods_address: OptionalText = None
    opencode_providers: str | None = Field(default=None, repr=False)
    notes: tuple[str, ...] = ()


class SealedRun(PaperclipContract):
    """The plaintext for a run: `context` is Paperclip's execution context as JSON, validated when it is opened."""

    binding: Binding
    context: dict[str, Any] = Field(repr=False)
    host: HostTexts = Field(default=HostTexts(), repr=False)


class SealedJoin(PaperclipContract):
    """The plaintext for a join: the tokens that Paperclip has issued for the later wake; without one nothing changes.

    Attributes:
        tools_token: of Paperclip's connection tools.
    """

    binding: Binding
    auth_token: str | None = Field(default=None, repr=False)
    tools_token: str | None = Field(default=None, repr=False)


class SealedMessage(PaperclipContract):
    """The plaintext of a message for an agent that works, or of the answer to a question of it.

    Attributes:
        question: the id of the question that this answers.
        answers: for each field of the question what was chosen.
    """

    binding: Binding
    text: str = Field(default="", max_length=MESSAGE_LIMIT, repr=False)
    question: str | None = None
    answers: tuple[tuple[str, ...], ...] = Field(default=(), repr=False)


class SealedCheck(PaperclipContract):
    """The plaintext for a check: an agent's configuration as JSON, as a run would get it.

    Attributes:
        workspaces: the folder in which Paperclip gives agents their workspaces; None: the caller is not Paperclip.
    """

    binding: Binding
    config: dict[str, Any] = Field(repr=False)
    workspaces: str | None = None
    host: HostTexts = Field(default=HostTexts(), repr=False)


class RunStart(ShortTexts):
    """The workflow's input. An unknown field is refused: nothing but these counts, everything else is sealed. So a new
    field is known to all workers before a caller sends it.

    Attributes:
        task: Paperclip's task; a later wake of the same task may join the run. None: no wake may.
        sealed: compact JWE of `SealedRun`.
        outcome_retention_sec: how long an outcome that no caller has fetched is kept, in seconds. Until then the next
            wake of the same task gets it; a wake of another task ends the retention.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    run_id: Identifier
    agent_id: Identifier
    company_id: Identifier
    task: OptionalText = None
    sealed: SealedText = Field(repr=False)
    outcome_retention_sec: Seconds = 24 * 3600

    @property
    def key(self) -> RunKey:
        return RunKey(agent_id=self.agent_id, company_id=self.company_id, run_id=self.run_id)


class CheckStart(ShortTexts):
    """The input of a check.

    Attributes:
        check_id: chosen by the caller; part of the workflow's id.
        sealed: compact JWE of `SealedCheck`.
        pod: also try a pod, which takes up to some minutes.
    """

    check_id: Identifier
    company_id: Identifier
    sealed: SealedText = Field(repr=False)
    pod: bool = False


class Finding(PaperclipContract):
    """One result of a check, in the shape of Paperclip's environment test.

    Attributes:
        code: stable, in snake_case.
        message: what was found, without values of the configuration.
        hint: what to do about it, where the message does not say so.
    """

    code: str
    level: Literal["info", "warn", "error"]
    message: str
    hint: str | None = None

    @classmethod
    def error(cls, code: str, message: str, hint: str | None = None) -> Self:
        """What a run would fail for."""
        return cls(code=code, level="error", message=message, hint=hint)


class CheckReport(PaperclipContract):
    """What a check has found; without an error a run of this configuration is not refused for it."""

    findings: tuple[Finding, ...] = ()
