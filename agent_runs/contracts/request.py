"""What Paperclip passes to a run, and what of it enters a history.

`ExecutionContext` is Paperclip's adapter execution context: unknown keys are ignored, known keys are validated, and an
error names the field and the remedy. `agent_runs.paperclip.preparation` splits it: `RunRequest` is the part without
secrets, which the history holds; `Secrets` and `PromptSource` exist only inside the activities that need them.

Source of the shapes: Paperclip 2026.916.1's `AdapterExecutionContext`, read and observed live.
"""

import json
import re
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    Secret,
    SecretStr,
    StringConstraints,
    model_validator,
)

from agent_runs.contracts.base import Contract, PaperclipContract
from agent_runs.contracts.identity import RunKey
from agent_runs.contracts.ignore import expression
from agent_runs.contracts.pod_options import Affinity, ExtraVolumes, ObjectName, SpreadConstraints, from_json
from agent_runs.contracts.pod_template import PodTemplate
from agent_runs.contracts.syntax import (
    AGENT_NAME,
    DNS_LABEL,
    ENV_NAME,
    IDENTIFIER,
    QUANTITY,
    is_label_key,
    matching,
    refuse,
)

MAX_WORKSPACES: Final = 16
TEXT_LIMIT: Final = 4096
"""Characters of a text that enters a history: Linux's longest path, and more than any other has."""
PROSE_LIMIT: Final = 16 * 1024 * 1024
"""Characters of a text that no history has."""
TOKEN_LIMIT: Final = 8 * 1024
"""Characters of a token of Paperclip's, whose server (Node) takes 16 KiB of headers."""
MAX_AREA: Final = 256 * 1024
"""Characters of a text that stands for a list or an object: twice what an OpenCode configuration may have."""
OPENCODE: Final = "opencode"
"""The agent that has a package of its own; every other one has a profile."""


def _is_model(value: str) -> bool:
    provider, _, name = value.partition("/")
    return bool(provider.strip() and name.strip())


def _bounded_area(value: object) -> object:
    """What a text area holds, before it is read: a longer JSON text could be millions of values."""
    if isinstance(value, str) and len(value) > MAX_AREA:
        raise refuse(f"must not have more than {MAX_AREA} characters")
    return value


def _blank_is_absent(value: object) -> object:
    """Paperclip's forms save an untouched text field as an empty string."""
    return None if isinstance(value, str) and not value.strip() else value


def _number_not_flag(value: object) -> object:
    if isinstance(value, bool):
        raise refuse("must be a number, not true or false")
    return value


def _number_as_text(value: object) -> object:
    """A quantity without a unit, which YAML and JSON have as a number."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _pairs(value: object) -> object:
    """`key=value` lines, JSON object text, or an object: the three forms the existing adapters accept."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.startswith("{"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise refuse("must be 'key=value' lines or a JSON object") from None
    return dict(_pair(line) for line in text.splitlines() if line.strip() and not line.strip().startswith("#"))


def _pair(line: str) -> tuple[str, str]:
    key, equals, value = line.partition("=")
    if not (equals and key.strip()):
        raise refuse("each line must be 'key=value'; blank lines and lines starting with '#' are skipped")
    return key.strip(), value.strip()


def _label_keys(value: dict[str, str]) -> dict[str, str]:
    if not all(map(is_label_key, value)):
        raise refuse("keys must be Kubernetes label keys: '[prefix/]name', 63 characters at most after the '/'")
    return value


def _variable_names(value: dict[str, SecretStr]) -> dict[str, SecretStr]:
    if not all(map(ENV_NAME.fullmatch, value)):
        raise refuse("names must start with a letter or '_' and hold only letters, digits, '_', '.', '-'")
    return value


def _words(value: object) -> object:
    """A list, or the words of a text area: each in a line of its own, or separated by commas or spaces."""
    return [word for word in re.split(r"[\s,]+", value) if word] if isinstance(value, str) else value


def _pattern_lines(value: object) -> object:
    """A list, or the lines of a text area, without those that are blank or a comment."""
    lines = value.splitlines() if isinstance(value, str) else () if value is None else value
    if not isinstance(lines, list | tuple):
        return value
    trimmed = [line.strip() if isinstance(line, str) else line for line in lines]
    return [line for line in trimmed if line and not str(line).startswith("#")]


def _usable_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    if sum(map(len, patterns)) > TEXT_LIMIT:
        raise refuse(f"must not have more than {TEXT_LIMIT} characters together")
    for pattern in patterns:
        try:
            expression(pattern)
        except ValueError as fault:
            raise refuse(f"has {json.dumps(pattern[:80], ensure_ascii=False)}, which {fault}") from None
    return patterns


def _json_object(value: object) -> object:
    """An object, or the JSON text of one as it comes from a text area."""
    if not isinstance(value, str):
        return value
    try:
        found = json.loads(value)
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()  # nobody reads NaN or half a character
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise refuse('must be a JSON object, for example {"compaction": {"auto": true}}')
    return found


JsonObject = Annotated[dict[str, Any], BeforeValidator(_json_object), BeforeValidator(_bounded_area)]

_Trimmed: Final = StringConstraints(strip_whitespace=True)
Identifier = Annotated[
    str,
    matching(
        IDENTIFIER.fullmatch,
        "must start with a letter or digit and hold only letters, digits, '_', '.', ':', '-' (128 at most)",
    ),
]
OptionalText = Annotated[str | None, BeforeValidator(_blank_is_absent)]
Prose = Annotated[Annotated[str, Field(max_length=PROSE_LIMIT)] | None, BeforeValidator(_blank_is_absent)]
EnvValue = Annotated[SecretStr, BeforeValidator(lambda v: SecretStr(v) if isinstance(v, str) else v)]
"""The limit of a `ShortTexts` does not count for it; what Linux takes does."""
Token = Secret[Annotated[str, Field(max_length=TOKEN_LIMIT)]]
SealedText = Annotated[str, Field(max_length=PROSE_LIMIT)]
AgentName = Annotated[
    str,
    _Trimmed,
    matching(AGENT_NAME.fullmatch, "must be the name of an agent: lowercase letters, digits and '-', 32 at most"),
]
Model = Annotated[
    str, _Trimmed, matching(_is_model, "must be '<provider>/<model>', for example 'anthropic/claude-sonnet-4-6'")
]
Namespace = Annotated[
    str,
    _Trimmed,
    matching(DNS_LABEL.fullmatch, "must be a namespace name: lowercase letters, digits and '-', 63 at most"),
]
Quantity = Annotated[
    str, _Trimmed, matching(QUANTITY.fullmatch, "must be a Kubernetes quantity such as '500m', '2' or '4Gi'")
]
OptionalQuantity = Annotated[Quantity | None, BeforeValidator(_number_as_text), BeforeValidator(_blank_is_absent)]
Seconds = Annotated[int, BeforeValidator(_number_not_flag), Field(ge=0, le=30 * 24 * 3600)]
Count = Annotated[int, BeforeValidator(_number_not_flag), Field(ge=0, le=10**12)]
USD_LIMIT: Final = 10**6
Usd = Annotated[float, BeforeValidator(_number_not_flag), Field(ge=0, le=USD_LIMIT, allow_inf_nan=False)]
Pairs = Annotated[dict[str, str], BeforeValidator(_pairs), BeforeValidator(_bounded_area), AfterValidator(_label_keys)]
OptionalName = Annotated[ObjectName | None, BeforeValidator(_blank_is_absent)]

OpenCodeFeature = Literal["lsp", "formatter", "snapshot", "projectConfig"]
"""Something of OpenCode that runs switch off, and that an agent's configuration may switch on."""


class ShortTexts(PaperclipContract):
    """Each text in it enters a history, is an attribute of the workflow or a value of Kubernetes: none may be long."""

    model_config: ClassVar[ConfigDict] = ConfigDict(str_max_length=TEXT_LIMIT)


class Toleration(ShortTexts):
    """A Kubernetes toleration. Source: core/v1 Toleration."""

    key: str | None = None
    operator: Literal["Exists", "Equal"] | None = None
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: int | None = None


class ResourceAmounts(ShortTexts):
    """CPU, memory and room on the node's disk as Kubernetes quantities."""

    cpu: OptionalQuantity = None
    memory: OptionalQuantity = None
    ephemeral_storage: OptionalQuantity = Field(default=None, alias="ephemeral-storage")


class Resources(ShortTexts):
    """Requests and limits of the agent container."""

    requests: ResourceAmounts = ResourceAmounts()
    limits: ResourceAmounts = ResourceAmounts()


class RuntimeSkill(ShortTexts):
    """One skill that Paperclip offers: a folder with a SKILL.md on Paperclip's data volume."""

    key: str
    runtime_name: str | None = None
    source: str | None = None
    source_status: str | None = None
    missing_detail: str | None = None
    required: bool = False


class DesiredSkill(ShortTexts):
    """A skill of an agent: its key, slug or runtime name."""

    key: str
    version_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _a_bare_name(cls, value: object) -> object:
        return {"key": value} if isinstance(value, str) else value


class SkillSync(ShortTexts):
    """The skills chosen for the agent; None: nothing is chosen."""

    desired_skills: tuple[DesiredSkill, ...] | None = None


class RunConfig(ShortTexts):
    """The part of the agent's configuration that may enter a history; all times in seconds.

    `agents.form` says what each field means.
    """

    model: Model
    agent: AgentName = OPENCODE
    variant: OptionalText = None
    extra_args: tuple[str, ...] = ()
    timeout_sec: Seconds = 0
    grace_sec: Seconds = 60
    schedule_timeout_sec: Annotated[Seconds, Field(ge=1)] = 600
    start_timeout_sec: Annotated[Seconds, Field(ge=1)] = 600
    first_output_timeout_sec: Seconds = 420
    silence_timeout_sec: Seconds = 3600
    max_cost_usd: Usd = 0
    max_tokens: Count = 0
    max_steps: Count = 0
    max_repeated_calls: Count = 0
    max_unread_sec: Seconds = 3600
    ask_timeout_sec: Seconds = 3600
    transport: Literal["auto", "run", "serve"] = "auto"
    keep_warm_sec: Annotated[int, BeforeValidator(_number_not_flag), Field(ge=0, le=24 * 3600)] = 120
    infrastructure_retries: Annotated[int, BeforeValidator(_number_not_flag), Field(ge=0, le=10)] = 2
    cwd: OptionalText = None
    workspace: Literal["auto", "shared", "carried", "ephemeral"] = "auto"
    workspace_ignore: Annotated[
        tuple[str, ...],
        AfterValidator(_usable_patterns),
        BeforeValidator(_pattern_lines),
        BeforeValidator(_bounded_area),
    ] = ()
    skills: Literal["folders", "inline"] = "folders"
    namespace: Annotated[Namespace | None, BeforeValidator(_blank_is_absent)] = None
    image: OptionalText = None
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    service_account_name: OptionalName = None
    resources: Resources = Resources()
    node_selector: Pairs | None = None
    tolerations: Annotated[tuple[Toleration, ...] | None, BeforeValidator(from_json)] = None
    labels: Pairs = {}
    runtime_class_name: OptionalName = None
    priority_class_name: OptionalName = None
    affinity: Affinity = None
    topology_spread_constraints: SpreadConstraints = None
    annotations: Pairs = {}
    extra_volumes: ExtraVolumes = None
    pod_template: PodTemplate = None
    ttl_seconds_after_finished: Seconds = 300
    retain_jobs: bool = False
    agent_db_mode: Literal["workspace_subpath", "dedicated_pvc", "ephemeral"] = "workspace_subpath"
    agent_db_storage_class: OptionalText = None
    agent_db_storage_capacity: Annotated[Quantity, matching(re.compile("[1-9]").search, "must be more than 0")] = "1Gi"
    dangerously_skip_permissions: bool = True
    opencode_features: Annotated[
        tuple[OpenCodeFeature, ...], BeforeValidator(_words), BeforeValidator(_bounded_area)
    ] = ()
    resume_last_session: bool = True
    instructions_file_path: OptionalText = None
    paperclip_api_url: OptionalText = None
    paperclip_runtime_skills: tuple[RuntimeSkill, ...] = ()
    paperclip_skill_sync: SkillSync = SkillSync()

    @model_validator(mode="before")
    @classmethod
    def _flat_resources(cls, value: object) -> object:
        """Nests flat keys: Paperclip's form saves `resources.requests.cpu` as one key, its API sends nested objects.

        Where the nested objects are wrong nothing is changed, so that the error names them.
        """
        if not isinstance(value, dict):
            return value
        flat = {key: amount for key, amount in value.items() if isinstance(key, str) and key.startswith("resources.")}
        if not flat:
            return value
        nested = value.get("resources", {})
        if not isinstance(nested, dict):
            return value
        parts = {kind: nested.get(kind, {}) for kind in ("requests", "limits")}
        if not all(isinstance(part, dict) for part in parts.values()):
            return value
        merged: dict[str, Any] = {kind: dict(part) for kind, part in parts.items()}
        for key, amount in flat.items():
            _, kind, resource = [*key.split("."), "", ""][:3]
            if kind in merged and resource in {"cpu", "memory", "ephemeral-storage"}:
                merged[kind].setdefault(resource, amount)
        return {**value, "resources": merged}

    @model_validator(mode="before")
    @classmethod
    def _thinking_effort(cls, value: object) -> object:
        """Takes Paperclip's own "Thinking effort" for the variant: one key of new agents, another of changed ones."""
        if not isinstance(value, dict) or _blank_is_absent(value.get("variant")) is not None:
            return value
        given = (value.get(name) for name in ("effort", "thinkingEffort"))
        efforts = [effort for effort in given if isinstance(effort, str) and effort.strip()]
        return {**value, "variant": efforts[0]} if efforts else value


class AdapterConfig(RunConfig):
    """The agent's whole configuration as Paperclip resolves it for one run. `env` holds secrets in clear.

    Attributes:
        opencode: the agent's own OpenCode configuration; `agent_runs.contracts.opencode` judges it.
    """

    env: Annotated[dict[str, EnvValue], AfterValidator(_variable_names)] = {}
    prompt_template: Prose = None
    bootstrap_prompt_template: Prose = None
    mcp_servers: dict[str, dict[str, Any]] = Field(default={}, repr=False)
    opencode: JsonObject = Field(default={}, repr=False)


class SessionParams(ShortTexts):
    """What Paperclip stores between runs so that the next one can resume. Source: the peers' session codec.

    Attributes:
        agent: that made it, and alone knows it; None: OpenCode, or nobody knows.
        agent_version: of the OpenCode that it was last used by; None: 1.x, or nobody knows.
        rejected: by which failure a provider has rejected it; None: it has not, or a run has succeeded since.
        workspace_run: Paperclip's id of the run whose carried workspace has it; None: a volume has it.
    """

    session_id: str
    agent: Annotated[str | None, Field(exclude_if=lambda agent: agent is None)] = None
    agent_version: Annotated[str | None, Field(exclude_if=lambda version: version is None)] = None
    cwd: str | None = None
    workspace_id: str | None = None
    repo_url: str | None = None
    repo_ref: str | None = None
    rejected: Annotated[str | None, Field(exclude_if=lambda rejected: rejected is None)] = None
    workspace_run: Annotated[str | None, Field(exclude_if=lambda run: run is None)] = None


class Runtime(ShortTexts):
    """Session and task of this wake. `session_params` is already decoded; None means a fresh session."""

    session_params: SessionParams | None = None
    task_key: str | None = None


class Workspace(ShortTexts):
    """The execution workspace: `cwd` is its path on Paperclip's data volume and in the pod."""

    cwd: OptionalText = None
    source: OptionalText = None
    strategy: OptionalText = None
    workspace_id: OptionalText = None
    repo_url: OptionalText = None
    repo_ref: OptionalText = None
    branch_name: OptionalText = None
    worktree_path: OptionalText = None
    agent_home: OptionalText = None


def _paths(value: object) -> object:
    """The paths of Paperclip's list of workspaces; one without a path is none, nor is one that no file can have."""
    items = value if isinstance(value, list | tuple) else ()
    paths = [item.get("cwd") if isinstance(item, dict) else item for item in items]
    known = [path for path in paths if isinstance(path, str) and path.strip() and len(path) <= TEXT_LIMIT]
    return known[:MAX_WORKSPACES]


class WakeContext(ShortTexts):
    """The part of the wake context that may enter a history: identifiers and reasons, no prose.

    Attributes:
        paperclip_workspaces: the paths of all workspaces of the run's project, `MAX_WORKSPACES` at most.
    """

    task_id: OptionalText = None
    issue_id: OptionalText = None
    wake_reason: OptionalText = None
    wake_comment_id: OptionalText = None
    comment_id: OptionalText = None
    approval_id: OptionalText = None
    approval_status: OptionalText = None
    issue_ids: tuple[str, ...] = ()
    issue_work_mode: OptionalText = None
    retry_of_run_id: OptionalText = None
    previous_run_id: OptionalText = None
    paperclip_workspace: Workspace = Workspace()
    paperclip_workspaces: Annotated[tuple[str, ...], BeforeValidator(_paths)] = ()
    paperclip_runtime_primary_url: OptionalText = None


class AgentRef(ShortTexts):
    """The agent of a run, by Paperclip's ids."""

    id: Identifier
    company_id: Identifier
    name: str = ""


class WakePrompt(PaperclipContract):
    """The wake text as the caller rendered it, for a resumed session and for a fresh one."""

    fresh: str = ""
    resumed: str = ""


class ContextRuntime(ShortTexts):
    """`runtime` of an execution context, not yet decoded: a session comes in several spellings, or malformed."""

    session_id: Any = None
    session_params: Any = None
    task_key: OptionalText = None


class RuntimeTools(PaperclipContract):
    """Paperclip's connection tools for one run; the bearer lives an hour."""

    bearer_token: Token | None = None
    mcp_endpoint: OptionalText = None
    rest: dict[str, Any] = {}
    expires_at: OptionalText = None
    tools: tuple[str, ...] = ()
    guidance: str = ""


class ExecutionContext(PaperclipContract):
    """Paperclip's adapter execution context. Holds secrets: never logged, never in a history."""

    run_id: Identifier
    agent: AgentRef
    runtime: ContextRuntime = ContextRuntime()
    config: AdapterConfig
    context: WakeContext = WakeContext()
    auth_token: Token | None = None
    runtime_tools: RuntimeTools | None = None


class Secrets(PaperclipContract):
    """What is secret of a run. Activities put it into Kubernetes Secrets or redact it.

    Attributes:
        run_id: Paperclip's id of the run that `auth_token` was issued for.
        env: the agent's own environment (`config.env`).
        secret_env: names in `env` that Paperclip bound to its secrets; their values are kept out of transcripts.
        paperclip_env: `PAPERCLIP_*` values that are prose or bulky (wake payload, workspaces).
        mcp_servers: OpenCode's or Claude's spelling, with headers and tokens.
        opencode: the agent's own OpenCode configuration.
        skill_files: texts of the files of skills that the worker sends to the pod, by path, the folder first.
    """

    run_id: str
    auth_token: str | None = Field(default=None, repr=False)
    env: dict[str, str] = Field(default={}, repr=False)
    secret_env: tuple[str, ...] = ()
    paperclip_env: dict[str, str] = Field(default={}, repr=False)
    mcp_servers: dict[str, dict[str, Any]] = Field(default={}, repr=False)
    opencode: dict[str, Any] = Field(default={}, repr=False)
    skill_files: dict[str, str] = Field(default={}, repr=False)


class PromptSource(PaperclipContract):
    """What the prompt is composed of. `bundle_prompt` puts it straight into a Kubernetes Secret.

    Attributes:
        agent, context: the template data of Paperclip, without secrets.
        instructions, skills: texts that the caller has read, those of skills by their keys.
        skill_folders: the folders of `Secrets.skill_files`, by the keys of their skills.
    """

    wake: WakePrompt = WakePrompt()
    instructions: str | None = None
    skills: dict[str, str] = {}
    skill_folders: dict[str, str] = {}
    task_markdown: str = ""
    session_handoff: str = ""
    bootstrap_template: str | None = None
    prompt_template: str | None = None
    agent: dict[str, Any] = {}
    context: dict[str, Any] = {}


class Capabilities(Contract):
    """What an agent can do, by how it is driven.

    Attributes:
        resumes: it continues a session that an earlier process has made.
        rests: its pod may wait for the agent's next run.
        takes_messages: while it works; otherwise each becomes its next prompt in the same run.
        asks: its questions reach people; otherwise each is answered with no.
        tokens: when they are known; None: never.
        cost: it reports one itself.
    """

    resumes: bool
    rests: bool
    takes_messages: bool
    asks: bool = False
    tokens: Literal["with each step", "after each turn"] | None
    cost: bool

    @property
    def words(self) -> dict[str, str]:
        """For people: what there is to do, and whether or when this agent does it."""
        return {
            "continues a session": _yes(self.resumes),
            "its pod rests (keepWarmSec)": _yes(self.rests),
            "gets messages (agent-runs tell)": "while it works" if self.takes_messages else "as its next prompt",
            "its questions reach people": _yes(self.asks),
            "tokens are known": self.tokens or "never",
            "cost": "its own" if self.cost else "by our table of prices, else unknown",
        }


def _yes(answer: bool) -> str:
    return "yes" if answer else "no"


class RunRequest(PaperclipContract):
    """The part of an execution context without secrets: the result of `prepare_run`, and what later steps use.

    Attributes:
        capabilities: the agent's.
        notes: for people, such as why a stored session is not resumed.
        budget_left_usd: of the agent's monthly budget in Paperclip when the run began; None: it has none.
    """

    run_id: Identifier
    agent: AgentRef
    runtime: Runtime = Runtime()
    config: RunConfig
    context: WakeContext = WakeContext()
    notes: tuple[str, ...] = ()
    capabilities: Capabilities | None = None
    budget_left_usd: Usd | None = None

    @property
    def key(self) -> RunKey:
        return RunKey(agent_id=self.agent.id, company_id=self.agent.company_id, run_id=self.run_id)

    @property
    def task_id(self) -> str | None:
        """Paperclip's task, which it also calls issue."""
        return self.context.task_id or self.context.issue_id

    @property
    def task(self) -> str | None:
        """The task of this wake: a later wake of the same task may join the run."""
        return self.task_id or self.runtime.task_key
