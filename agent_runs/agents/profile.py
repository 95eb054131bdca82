"""A profile: how one agent that speaks the Agent Client Protocol (ACP) is run, as data.

Profiles are YAML files beside this module, one per agent, and in the folder of the operator's setting
`AGENT_RUNS_AGENTS`. OpenCode has none: it has a package of its own. In commands, variables and files `{model}` and the
other `PLACEHOLDERS` stand for what the agent's configuration says; a line, a variable or an argument with a placeholder
that has no value is left out. Pure but for `load`, which reads the files.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from agent_runs.contracts.errors import InvalidRequest
from agent_runs.contracts.pod import HOME_DIRECTORY
from agent_runs.contracts.request import OPENCODE, Capabilities
from agent_runs.contracts.syntax import AGENT_NAME, matching, refuse
from agent_runs.plain_yaml import NoPlainYaml, load_yaml

OPENCODE_TITLE: Final = "OpenCode"
FOLDER: Final = Path(__file__).parent
MAX_PROFILES: Final = 50

PLACEHOLDERS: Final = {
    "model": "the name of `config.model` after its first slash",
    "provider": "the part of `config.model` before its first slash",
    "effort": "`config.variant`, Paperclip's thinking effort; no value when it is empty",
    "base_url": "the address of the model's provider: the value of the variable that `base_url` names, or its default",
    "permission_mode": "`allow` or `reject` of `permissions`, by `config.dangerouslySkipPermissions`",
    "home": "the agent's home in its pod",
}
"""What may stand in braces, and what for."""
_PLACEHOLDER: Final = re.compile(r"\{([a-z_]+)\}")
_MODEL: Final = re.compile(r"[^\s/]+/[!-~]+")
_VERSION: Final = re.compile(r"\d{1,6}\.\d{1,6}\.\d{1,6}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _line(value: str) -> str:
    if not value.strip() or not value.isprintable():
        raise refuse("must be one line of text")
    return value.strip()


def _path(value: str) -> str:
    parts = value.split("/")
    if not value.isprintable() or any(part in {"", ".", ".."} for part in parts):
        raise refuse("must be a path below the agent's home, without '.' and '..'")
    return value


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except (re.error, RecursionError, OverflowError):
        raise refuse("must be a regular expression of Python") from None
    return value


def _template(value: str) -> str:
    if "\0" in value:
        raise refuse("must not hold a NUL character")
    if unknown := [name for name in _PLACEHOLDER.findall(value) if name not in PLACEHOLDERS]:
        known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
        raise refuse(f"has the unknown placeholder {{{unknown[0]}}}: known are {known}")
    return value


Line = Annotated[str, AfterValidator(_line)]
Name = Annotated[
    str,
    matching(
        lambda name: AGENT_NAME.fullmatch(name) and name != OPENCODE,
        "must be lowercase letters, digits and '-', 32 at most, and not `opencode`",
    ),
]
ModelName = Annotated[str, matching(_MODEL.fullmatch, "must be <provider>/<model>, without spaces")]
Variable = Annotated[str, matching(_VARIABLE.fullmatch, "must be the name of an environment variable")]
HomePath = Annotated[str, AfterValidator(_path)]
Pattern = Annotated[str, AfterValidator(_pattern)]
Version = Annotated[str, matching(_VERSION.fullmatch, "must be three numbers, such as 1.2.0")]
Template = Annotated[str, AfterValidator(_template)]
ErrorName = Literal[
    "APIError",
    "ContentFilterError",
    "ContextOverflowError",
    "MessageOutputLengthError",
    "ProviderAuthError",
    "ProviderModelNotFoundError",
    "UnknownError",
]
Usage = Literal["result_usage", "result_quota", "message_meta", "pi_session"]


class ProfilePart(BaseModel):
    """A part of the file; a key that is not known is refused by name."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class BaseUrl(ProfilePart):
    """Where the agent finds its model's provider, for an agent that takes no variable for it.

    Attributes:
        variable: whose value it is.
        default: without that variable.
    """

    variable: Variable
    default: Line


class Permissions(ProfilePart):
    """What `{permission_mode}` stands for.

    Attributes:
        allow: with `config.dangerouslySkipPermissions`: the agent does not ask, or is always answered with yes.
        reject: without: it asks before a tool leaves the workspace, and is always answered with no. None: it has no
            such mode, so a configuration that wants one is refused.
    """

    allow: Line = "allow"
    reject: Line | None = None


class Match(ProfilePart):
    """An error of the protocol.

    Attributes:
        code: of JSON-RPC; None: any.
        matches: a regular expression that is searched for in its message and, as compact JSON, its data.
    """

    code: int | None = None
    matches: Pattern = ""


class KnownError(Match):
    """An error whose cause is known.

    Attributes:
        name: OpenCode's name for the same; with `status` it decides how the run's failure is called.
        status: of HTTP, of the provider's answer.
    """

    name: ErrorName = "APIError"
    status: Annotated[int, Field(ge=400, le=599)] | None = None


class AgentProfile(ProfilePart):
    """One agent.

    Attributes:
        name: as the field `agent` of a configuration names it; the file has the same name.
        title: for people.
        packages: what its image holds, first what speaks the protocol, last the agent: of each package the oldest and
            the newest version that are supported. An agent that says an older version gets no prompt, nor one with a
            larger first number. None: any version gets one.
        image: of its pods, unless `AGENT_RUNS_AGENT_IMAGES` or a configuration names another.
        command: the program, which is on PATH of the image, with its arguments.
        environment: its variables. No variable of a configuration or of the worker replaces them.
        keys: variables with the key of the model's provider; it needs one of them, and their values are redacted.
        base_url: for an agent that takes no variable for the address of its model's provider: what `{base_url}` is.
        files: texts by their path below the home; each is written before the start.
        prepare: a step before the start that is part of this program.
        sessions: folders below the home in which it keeps its sessions; for people.
        takes_messages: it takes messages while it works, by the extension `_session/steering`, as it says itself;
            otherwise each becomes its next prompt in the same run.
        permissions: the modes that `{permission_mode}` stands for.
        skills: the folder below the home in which it looks for skills, such as `.claude/skills`. None: nowhere, so that
            only the prompt names their folders.
        instructions: files that it takes for instructions by itself, besides those that Paperclip gives in the prompt;
            for people.
        models: what people are offered as `config.model`, `<provider>/<model>`; any other may be configured, too.
        loads_sessions: it can continue a session that an earlier process has made.
        rests: its pod may wait for the agent's next run, whose process starts anew there with that run's variables: it
            keeps all that it needs of a session below its home, and takes nothing of a run from elsewhere in the pod.
        set_mode: ask for the permission mode by the protocol's `session/set_mode`, too.
        set_title: give a new session its title by the protocol's `session/set_title`, for it would ask a model for one.
        model_option: how the protocol is asked for the model: `session/set_model`, or the id of a configuration option.
            None: not at all, because the command, a variable or a file names it.
        authenticate: the method that is called before a session is made.
        client_meta: `_meta` of the capabilities with which it is called, for extensions of the protocol.
        failure: a path in `_meta` of its answer to a prompt. What is there is the error of a turn that it answers as if
            it had gone well, with its message in `title`, unless its `severity` is `warning`.
        mcp_servers: the kinds that it takes; none: it ignores all.
        usage: where its tokens are found; None: nowhere.
        usage_files: for a `usage` in files: a glob below the home.
        cost: where its cost is found; None: it reports none.
        version: a command that prints its version; by default the first words of `command` with `--version`.
        start_timeout: seconds until it must have answered `initialize`.
        unknown_session: errors that mean that it does not know the session.
        errors: errors whose cause is known, each with `code`, `matches`, `name` and `status`; the first that matches
            counts.
        informational: texts of the agent that are no part of an answer.
        limits: what else it cannot do, a sentence each; for people, before the run.
    """

    name: Name
    title: Line
    packages: dict[Line, tuple[Version, Version]] = {}
    image: Line | None = None
    command: Annotated[tuple[Template, ...], Field(min_length=1)]
    environment: dict[Variable, Template] = {}
    keys: tuple[Variable, ...] = ()
    base_url: BaseUrl | None = None
    files: dict[HomePath, Template] = {}
    prepare: Literal["gemini_sessions"] | None = None
    sessions: tuple[HomePath, ...] = ()
    skills: HomePath | None = None
    instructions: tuple[Line, ...] = ()
    models: tuple[ModelName, ...] = ()
    loads_sessions: bool = True
    rests: bool = False
    takes_messages: bool = False
    permissions: Permissions = Permissions()
    set_mode: bool = False
    set_title: bool = False
    model_option: Line | None = None
    authenticate: Line | None = None
    client_meta: dict[str, Any] = {}
    failure: tuple[Line, ...] = ()
    mcp_servers: tuple[Literal["stdio", "http", "sse"], ...] = ()
    usage: Usage | None = None
    usage_files: HomePath | None = None
    cost: Literal["usage_update", "pi_session"] | None = None
    version: tuple[Line, ...] = ()
    start_timeout: Annotated[int, Field(ge=1, le=600)] = 240
    unknown_session: tuple[Match, ...] = ()
    errors: tuple[KnownError, ...] = ()
    informational: tuple[Pattern, ...] = ()
    limits: tuple[Line, ...] = ()

    @model_validator(mode="after")
    def _base_url_is_named(self) -> Self:
        if "base_url" in self.placeholders and self.base_url is None:
            raise refuse("base_url is missing: {base_url} stands for its value")
        return self

    @property
    def placeholders(self) -> frozenset[str]:
        texts = (*self.command, *self.environment.values(), *self.files.values())
        return frozenset(name for text in texts for name in _PLACEHOLDER.findall(text))

    @property
    def versions(self) -> list[list[str]]:
        """Windows of `agent_runs.pod.sidecar.drivers.versions`."""
        return [list(window) for window in self.packages.values()]

    @property
    def takes_effort(self) -> bool:
        return "effort" in self.placeholders

    @property
    def capabilities(self) -> Capabilities:
        tokens: Final = "with each step" if self.usage == "message_meta" else "after each turn"
        return Capabilities(
            resumes=self.loads_sessions,
            rests=self.rests,
            takes_messages=self.takes_messages,
            asks=self.permissions.reject is not None,
            tokens=tokens if self.usage else None,
            cost=self.cost is not None,
        )

    @property
    def version_command(self) -> tuple[str, ...]:
        return self.version or (self.command[0], "--version")

    def values(
        self, *, model: str, effort: str | None, skip_permissions: bool, variables: Mapping[str, str]
    ) -> dict[str, str | None]:
        """What the placeholders stand for in a run; None: no value.

        Args:
            model: `<provider>/<model>`.
            variables: the agent's environment, as far as it is known.
        """
        provider, _, name = model.partition("/")
        address = (variables.get(self.base_url.variable) or self.base_url.default) if self.base_url else None
        return {
            "model": name,
            "provider": provider,
            "effort": effort,
            "base_url": address,
            "permission_mode": self.permissions.allow if skip_permissions else self.permissions.reject,
            "home": HOME_DIRECTORY,
        }


def rendered(text: str, values: Mapping[str, str | None]) -> str | None:
    """A template with its values; None when one of them has none."""
    if any(values.get(name) is None for name in _PLACEHOLDER.findall(text)):
        return None
    return _PLACEHOLDER.sub(lambda match: values[match[1]] or "", text)


def rendered_file(text: str, values: Mapping[str, str | None]) -> str:
    """The text of a file: without the lines that have no value. In the strings of JSON and TOML values are escaped."""
    escaped = {name: None if value is None else _in_a_string(value) for name, value in values.items()}
    lines = (rendered(line, escaped) for line in text.splitlines())
    return "".join(f"{line}\n" for line in lines if line is not None)


def _in_a_string(value: str) -> str:
    """What is between the quotes of a JSON or TOML string. Half a character, which neither has, becomes `?`."""
    whole = value.encode("utf-8", "replace").decode()
    return json.dumps(whole, ensure_ascii=False)[1:-1].replace("\x7f", "\\u007f")


def keys(profiles: Iterable[AgentProfile]) -> frozenset[str]:
    """The variables that hold keys of these agents' providers."""
    return frozenset(name for profile in profiles for name in profile.keys)


def title_of(agent: str, profiles: Mapping[str, AgentProfile]) -> str:
    """How people call an agent; of one that has no profile any more, its name."""
    if agent == OPENCODE:
        return OPENCODE_TITLE
    return profiles[agent].title if agent in profiles else agent


def load(folder: Path | None = None) -> dict[str, AgentProfile]:
    """The profiles of this program, and those of the operator's folder, of which one may replace one of ours.

    Raises:
        InvalidRequest: a file cannot be read or is no profile; names the file, the line and the key.
    """
    profiles = dict(_of(FOLDER))
    if folder is not None:
        profiles |= dict(_of(folder))
    if len(profiles) > MAX_PROFILES:
        raise InvalidRequest(f"{folder} has more than {MAX_PROFILES} profiles of agents")
    return profiles


def _of(folder: Path) -> Iterator[tuple[str, AgentProfile]]:
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix == ".yaml")
        texts = [(file, file.read_text("utf-8")) for file in files]
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{folder}: its profiles cannot be read: {type(error).__name__}") from None
    for file, text in texts:
        profile = parse(text, file.name)
        if profile.name != file.stem:
            raise InvalidRequest(f"{file.name}: name: must be {file.stem}, as the file is called")
        yield profile.name, profile


def parse(text: str, file: str) -> AgentProfile:
    """Reads the text of a profile.

    Raises:
        InvalidRequest: no YAML mapping, or a key or value that is wrong; names the key.
    """
    try:
        content: Any = load_yaml(text)
    except NoPlainYaml as error:
        raise InvalidRequest(f"{file}{error}") from None
    if not isinstance(content, dict):
        raise InvalidRequest(f"{file} must hold a YAML mapping")
    try:
        return AgentProfile.model_validate(content)
    except ValidationError as error:
        raise InvalidRequest("; ".join(f"{file}: {problem}" for problem in _problems(error))) from None


def _problems(error: ValidationError) -> Iterator[str]:
    for each in error.errors(include_url=False, include_input=False):
        path = ".".join(str(step) for step in each["loc"]) or "profile"
        if each["type"] == "extra_forbidden":
            yield f"{path}: no such key"
        else:
            yield f"{path}: {each['msg']}"
