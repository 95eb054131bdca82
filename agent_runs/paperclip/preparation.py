"""Turns Paperclip's execution context into a run request that may enter a history.

The context is validated in one go, so that an operator sees every wrong field at once by Paperclip's own path and
never a value. What is secret or prose is separated from the request; what only means something on Paperclip's host is
dropped. Nothing here touches a cluster: a context that cannot run fails before any object exists.
"""

import json
import math
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from dataclasses import field as attribute
from typing import Any, Final, Protocol

from pydantic import ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from agent_runs.contracts import opencode
from agent_runs.contracts.errors import InvalidRequest, PaperclipBudgetExceeded
from agent_runs.contracts.pod import DATA_DIRECTORY, HOME_DIRECTORY
from agent_runs.contracts.request import (
    USD_LIMIT,
    AdapterConfig,
    ExecutionContext,
    PromptSource,
    RunConfig,
    RunRequest,
    Runtime,
    RuntimeTools,
    Secrets,
    SessionParams,
    WakeContext,
    Workspace,
)
from agent_runs.contracts.start import HostTexts
from agent_runs.contracts.syntax import is_absolute_url, path_of, remedy_of
from agent_runs.paperclip import advanced, session, skills, tools
from agent_runs.paperclip.gateways import PROVIDERS_VARIABLE, Gateways
from agent_runs.paperclip.ineffective_variables import ineffective_variables
from agent_runs.paperclip.javascript import stringify, trim, well_formed
from agent_runs.paperclip.unknown_fields import unknown_fields

NESTING_LIMIT: Final = 64
VARIABLE_LIMIT: Final = 128 * 1024 - 1
"""Bytes of `NAME=value` with its final NUL: Linux refuses to start a program with a longer one (MAX_ARG_STRLEN)."""

BULKY_LIMIT: Final = 96 * 1024
"""Bytes of one `*_JSON` variable. A larger one is left out: the agent can ask Paperclip's API for the same facts."""

HOST_ONLY: Final = frozenset(
    {
        "GH_CONFIG_DIR",
        "PAPERCLIP_GITHUB_HOST_HOME",
        "PAPERCLIP_GITHUB_AUTH_MODE",
        "PAPERCLIP_GIT_METADATA_ROOTS",
        "PAPERCLIP_RUNNER_NETWORK_ROOTS",
        "PAPERCLIP_RUNNER_NETWORK_ACCESS",
        "PAPERCLIP_GITHUB_BROKER_URL",
        "PAPERCLIP_GITHUB_BROKER_TOKEN",
    }
)
"""Variables of `config.env` that describe Paperclip's own host. Source: Paperclip 2026.916.1, seen live."""

AI_CONNECTION: Final = frozenset(
    {
        *("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "CODEX_HOME", "GROK_HOME", "CLAUDE_CONFIG_DIR"),
        *("OPENCODE_CONFIG_CONTENT", "OPENCODE_DISABLE_PROJECT_CONFIG"),
    }
)
"""Variables that Paperclip adds with a managed AI connection: folders on its host, and what repeats the connection's
key, which is in the provider's own variable. Source: Paperclip 2026.916.1, the code of its server."""

SCRATCH: Final = frozenset(
    {"PAPERCLIP_SCRATCH_DIR", "PAPERCLIP_RUN_SCRATCH_DIR", "PAPERCLIP_TASK_SCRATCH_DIR", "PAPERCLIP_TMPDIR"}
)
TEMPORARY: Final = frozenset({"TMPDIR", "TEMP", "TMP"})

_ONLY_THE_PLUGIN: Final = "only Paperclip's plugin reads files for a run"

NOTE_LIMIT: Final = 500
"""Characters of one note."""

FIELD_LIMIT: Final = 200
"""Characters of the path of a wrong field."""
FIELDS_LIMIT: Final = 500
REQUEST_LIMIT: Final = 256 * 1024
"""Bytes of a request as JSON. It is in its run's history several times. Temporal refuses a result of more than 2 MiB,
each time that the activity is retried."""
REMEDY_LIMIT: Final = 300
CENTS_LIMIT: Final = 10**15

_SECRET_FIELD: Final = re.compile(
    r"^(env|headers|mcpservers|opencode|advanced|paperclipruntimetools|paperclipmanagedmcp|paperclipsecrets|runtimemcp|.*cookie"
    r"|.*(token|secret|password|passwd|credential|api_?key|private_?key|authorization|bearer|kubeconfig).*)$",
    re.IGNORECASE,
)
_BULKY: Final = frozenset(
    {
        "executionContinuation",
        "paperclipTaskMarkdown",
        "paperclipTaskMarkdownCompact",
        "paperclipEnvironment",
        "paperclipSessionHandoffMarkdown",
        "realization",
        "workspaceRealization",
    }
)
_LOGIN: Final = re.compile(r"(?<=://)[^\s/?#@]+@")

_MISSING: Final[dict[str, str]] = {
    "config.model": "is missing: choose one as '<provider>/<model>', for example 'anthropic/claude-sonnet-4-6'",
    "agent.id": "is missing: the context must name the agent that runs",
    "agent.companyId": "is missing: the context must name the agent's company",
    "runId": "is missing: the context must carry Paperclip's run id",
}


@dataclass(frozen=True)
class Problem:
    """One wrong field by Paperclip's path, and what to do about it. Never a value."""

    field: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.field} {self.remedy}"


@dataclass(frozen=True)
class Preparation:
    """What a wake is split into.

    Attributes:
        request: may enter a history.
        secrets, prompt: may not.
        names_address: the agent's own configuration names Paperclip's address; else Paperclip's process did, or nobody.
        warnings: what of the agent's configuration has no effect; also among the notes of `request`.
    """

    request: RunRequest
    secrets: Secrets = attribute(repr=False)
    prompt: PromptSource = attribute(repr=False)
    names_address: bool
    warnings: tuple[str, ...] = ()

    @property
    def chosen(self) -> RunConfig:
        """The configuration as far as the agent's own chose it: what Paperclip's process added is its operator's."""
        config = self.request.config
        return config if self.names_address else config.model_copy(update={"paperclip_api_url": None})


class Preparations(Protocol):
    """Gives an activity the prepared wake of its run."""

    async def current(self) -> Preparation:
        """Returns what the sealed text of the run holds that scheduled the calling activity.

        Raises:
            SealedFieldUnreadable: it cannot be opened, or is sealed for another use.
            InvalidRequest: names every wrong field by its Paperclip path with the remedy, and quotes no value.
        """
        ...


class WrongFields(ValueError):
    """An execution context with wrong fields, which it lists, with the warnings about its other fields."""

    def __init__(self, problems: Iterable[Problem], warnings: tuple[str, ...] = ()) -> None:
        super().__init__("an execution context has wrong fields")
        self.problems = tuple(dict.fromkeys(problems))
        self.warnings = warnings


def prepare(raw: Mapping[str, Any], host: HostTexts = HostTexts()) -> Preparation:  # noqa: B008 - it is frozen
    """Splits a raw execution context, JSON as Paperclip passes it.

    Raises:
        InvalidRequest: names every wrong field by its Paperclip path with the remedy, and quotes no value.
        PaperclipBudgetExceeded: nothing is left of the agent's monthly budget in Paperclip.
    """
    try:
        return split(raw, host)
    except WrongFields as wrong:
        raise InvalidRequest(
            ". Warnings: ".join(filter(None, ("; ".join(map(str, wrong.problems)), "; ".join(wrong.warnings)))),
            fields=", ".join(dict.fromkeys(problem.field for problem in wrong.problems))[:FIELDS_LIMIT],
        ) from None


def split(raw: Mapping[str, Any], host: HostTexts) -> Preparation:
    """As `prepare`, for a caller that wants the wrong fields one by one.

    Raises:
        WrongFields: lists every wrong field.
        InvalidRequest: it is nested too deeply.
        PaperclipBudgetExceeded: as `prepare`.
    """
    config = raw.get("config")
    folded = advanced.fold(_object(config))
    try:
        return _split({**raw, "config": folded.config} if isinstance(config, Mapping) else raw, host, folded)
    except WrongFields as wrong:
        problems = [replace(each, field=folded.written(each.field)) for each in wrong.problems]
        raise WrongFields(problems, wrong.warnings) from None


def _split(raw: Mapping[str, Any], host: HostTexts, folded: advanced.Folded) -> Preparation:
    tidy: dict[str, Any] = _tidy(raw, NESTING_LIMIT)
    warnings = tuple(map(folded.written, _configuration_warnings(tidy)))
    addresses = tools.Addresses.of(host, _object(tidy.get("config")).get("paperclipApiUrl"))
    providers = Gateways.of(_object(tidy.get("config")), host)
    unread = (*providers.problems, *folded.problems)
    context = _validated(_at_pods_addresses(tidy, addresses), unread, warnings)
    wake = _wake_context(context, tidy)
    directory = session.working_directory(wake.paperclip_workspace, context.config)
    stored = session.decode(context.runtime)
    resume = session.resume(
        _without_login_in(stored.session),
        directory,
        enabled=context.config.resume_last_session,
        agent=context.config.agent,
        served=context.config.transport != "run",
    )
    variables, oversized = _bounded(_paperclip_env(context, tidy, host))
    env = _agent_env(context.config, tidy)
    token = context.auth_token.get_secret_value() if context.auth_token else None
    own_servers = context.config.mcp_servers
    config = _safe_config(context.config)
    texts, skill_notes = _skill_texts(config, host)
    skill_folders, skill_files = skills.packed(texts, host.skill_files)
    secrets = Secrets(
        run_id=context.run_id,
        auth_token=token,
        env=env,
        secret_env=tuple(sorted(env.keys() & _bound_to_secrets(tidy))),
        paperclip_env=variables,
        mcp_servers={**own_servers, **tools.tool_servers(host.tool_servers, addresses, own_servers.keys(), token)},
        opencode=providers.merged(context.config.opencode),
        skill_files=skill_files,
    )
    notes = (
        *warnings,
        stored.reason,
        resume.reason,
        *oversized,
        *(note[:NOTE_LIMIT] for note in host.notes),
        *skill_notes,
        _unread_instructions(config, host),
    )
    request = RunRequest(
        run_id=context.run_id,
        agent=context.agent,
        runtime=Runtime(session_params=resume.session, task_key=context.runtime.task_key),
        config=config,
        context=wake,
        notes=tuple(note for note in notes if note),
        budget_left_usd=_budget_left(_object(tidy.get("agent"))),
    )
    if problems := [*_unreadable_fields(request), *_large_fields(request)]:
        raise WrongFields(problems, warnings)
    prompt = _prompt_source(context, tidy, host, texts).model_copy(update={"skill_folders": skill_folders})
    return Preparation(request, secrets, prompt, names_address=addresses.chosen, warnings=warnings)


# reading


def _tidy(value: Any, depth: int) -> Any:
    """`value` with well-formed text. A number that JSON does not have becomes null, as in JavaScript."""
    if depth == 0:
        raise InvalidRequest(f"the execution context is nested deeper than {NESTING_LIMIT} levels")
    if isinstance(value, Mapping):
        return {well_formed(str(name)): _tidy(item, depth - 1) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_tidy(item, depth - 1) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return well_formed(value) if isinstance(value, str) else value


def _present(value: Any) -> Any:
    """`value` without nulls inside objects: to Paperclip a null setting and a missing one are the same."""
    if isinstance(value, dict):
        return {name: _present(item) for name, item in value.items() if item is not None}
    return [_present(item) for item in value] if isinstance(value, list) else value


def _given(tidy: dict[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = _present(tidy)
    if isinstance(config := given.get("config"), dict):
        # Paperclip's forms save an untouched field as an empty string.
        given["config"] = {name: value for name, value in config.items() if value != ""}
    return given


def _at_pods_addresses(tidy: dict[str, Any], addresses: tools.Addresses) -> dict[str, Any]:
    """`tidy` with addresses of Paperclip that pods reach."""
    moved = dict(tidy)
    if isinstance(config := tidy.get("config"), dict) and addresses.pods is not None:
        moved["config"] = {**config, "paperclipApiUrl": addresses.pods}
    if isinstance(offered := tidy.get("runtimeTools"), dict):
        moved["runtimeTools"] = tools.reachable_tools(offered, addresses)
    return moved


def _configuration_warnings(tidy: dict[str, Any]) -> tuple[str, ...]:
    """What of the agent's configuration has no effect."""
    config = _object(tidy.get("config"))
    given = {name for name, value in _object(config.get("env")).items() if value is not None}
    return (*unknown_fields(config), *_unused_effort(config), *ineffective_variables(given - _host_variables(tidy)))


def _unused_effort(config: dict[str, Any]) -> Iterator[str]:
    """The effort that Paperclip's page shows, where a variant counts, which it does not show."""
    variant = config.get("variant")
    for name in ("effort", "thinkingEffort"):
        if variant and config.get(name) not in (None, "", variant):
            yield f"config.{name} has no effect: config.variant counts"


def _validated(tidy: dict[str, Any], unread: Iterable[tuple[str, str]], warnings: tuple[str, ...]) -> ExecutionContext:
    unsupported = (
        *_unsupported(tidy),
        *(Problem(path[:FIELD_LIMIT], remedy[:REMEDY_LIMIT]) for path, remedy in unread),
    )
    try:
        context = ExecutionContext.model_validate(_given(tidy))
    except ValidationError as error:
        wrong = map(_problem, error.errors(include_url=False, include_input=False))
        raise WrongFields([*wrong, *unsupported], warnings) from None
    if problems := [*unsupported, *_deeper_problems(context)]:
        raise WrongFields(problems, warnings)
    return context


def _problem(detail: ErrorDetails) -> Problem:
    field = well_formed(path_of(detail))[:FIELD_LIMIT] or "context"
    remedy = _MISSING.get(field) if detail["type"] == "missing" else None
    return Problem(field, (remedy or remedy_of(detail))[:REMEDY_LIMIT])


def _unsupported(tidy: dict[str, Any]) -> Iterator[Problem]:
    if _object(tidy.get("config")).get("kubeconfig"):
        yield Problem(
            "config.kubeconfig",
            "is not honoured: agents run in the worker's cluster; clear the field, or send the run to the task queue "
            "of a worker in that cluster",
        )


def _deeper_problems(context: ExecutionContext) -> Iterator[Problem]:
    config = context.config
    yield from _directory_problems(config, context.context.paperclip_workspace)
    if config.image is not None and (not config.image.isprintable() or " " in config.image.strip()):
        yield Problem("config.image", "must be an image reference without spaces")
    if config.paperclip_api_url is not None and not is_absolute_url(config.paperclip_api_url):
        yield Problem(
            "config.paperclipApiUrl",
            "must be an absolute http:// or https:// URL without a login, query or fragment, such as "
            "https://paperclip.example",
        )
    for name, value in config.env.items():
        text = value.get_secret_value()
        if "\0" in text:
            yield Problem(f"config.env.{name}"[:FIELD_LIMIT], "must not hold a NUL character")
        if len(f"{name}={text}".encode()) > VARIABLE_LIMIT:
            yield Problem(
                f"config.env.{name}"[:FIELD_LIMIT], f"is too long: a variable may have {VARIABLE_LIMIT} bytes"
            )
    for path, remedy in opencode.problems(config.opencode):
        yield Problem(f"config.opencode.{path}".rstrip(".")[:FIELD_LIMIT], remedy)


def _directory_problems(config: AdapterConfig, workspace: Workspace) -> Iterator[Problem]:
    chosen = (
        "Paperclip chose it: let it be carried (AGENT_RUNS_WORKSPACE_STORE on the worker, and "
        "AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL of Paperclip's server), move its home or the project's folder there, or "
    )
    for field, path, remedy in (
        ("config.cwd", config.cwd, ""),
        ("context.paperclipWorkspace.cwd", workspace.cwd, chosen),
    ):
        if path is None:
            continue
        if not path.startswith("/") or not path.isprintable():
            yield Problem(field, "must be an absolute path without control characters")
        elif config.workspace in ("auto", "shared") and not _outlives_pods(path):
            yield Problem(
                field,
                f"must be below {DATA_DIRECTORY}, where Paperclip's data volume is, because whatever is elsewhere is "
                f"lost with the agent's pod; {remedy}set config.workspace to `ephemeral` if that may be",
            )


def _unreadable_fields(request: RunRequest) -> Iterator[Problem]:
    """The fields for which the workflow could not read this request: what was added to it was not validated."""
    try:
        RunRequest.model_validate_json(request.model_dump_json())
    except ValidationError as error:
        yield from map(_problem, error.errors(include_url=False, include_input=False))


def _large_fields(request: RunRequest) -> Iterator[Problem]:
    """The largest fields of a request that is too large for a history."""
    excess = len(request.model_dump_json().encode()) - REQUEST_LIMIT
    fields = [("config", request.config), ("context", request.context), ("runtime", request.runtime)]
    sizes = {
        f"{part}.{to_camel(name)}": len(json.dumps(value))
        for part, model in fields
        for name, value in model.model_dump(mode="json").items()
    }
    sizes["notes"] = len(json.dumps(request.notes))
    for field, size in sorted(sizes.items(), key=lambda each: -each[1]):
        if excess <= 0:
            return
        yield Problem(field, f"is too long: {size} characters; a run's request may have {REQUEST_LIMIT} in all")
        excess -= size


def _outlives_pods(path: str) -> bool:
    """Whether a path in the pod is on the data volume: in one of its folders, or in the agent's home."""
    plain = "/" + posixpath.normpath(path.strip()).lstrip("/")  # POSIX keeps two slashes at the beginning
    return any(f"{plain}/".startswith(f"{root}/") for root in (DATA_DIRECTORY, HOME_DIRECTORY))


# splitting


def _budget_left(agent: dict[str, Any]) -> float | None:
    """What is left of the agent's monthly budget in Paperclip, in USD; None when it has none, or its spend is unknown.

    Raises:
        PaperclipBudgetExceeded: nothing is left.
    """
    budget, spent = (_cents(agent.get(f"{name}MonthlyCents")) for name in ("budget", "spent"))
    if budget is None or spent is None or budget <= 0:
        return None
    if spent >= budget:
        raise PaperclipBudgetExceeded(
            f"the agent has spent ${spent / 100:.2f} of ${budget / 100:.2f}, its monthly budget in Paperclip"
        )
    return min((budget - spent) / 100, USD_LIMIT)


def _cents(value: object) -> float | None:
    """A bounded amount, so that sums do not overflow; None if it is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return max(-CENTS_LIMIT, min(value, CENTS_LIMIT))


def _safe_config(config: AdapterConfig) -> RunConfig:
    """The configuration without secrets and prose, and with those skills only that this run needs."""
    safe = RunConfig.model_validate(config.model_dump(include=set(RunConfig.model_fields)))
    kept, sync = skills.narrow(safe.paperclip_runtime_skills, safe.paperclip_skill_sync)
    return safe.model_copy(update={"paperclip_runtime_skills": kept, "paperclip_skill_sync": sync})


def _wake_context(context: ExecutionContext, tidy: dict[str, Any]) -> WakeContext:
    """The wake's identifiers; a password is removed from an address, and the whole address sealed."""
    wake = context.context
    workspace = wake.paperclip_workspace
    return wake.model_copy(
        update={
            "issue_work_mode": wake.issue_work_mode or _work_mode(tidy),
            "paperclip_workspace": workspace.model_copy(update={"repo_url": _without_login(workspace.repo_url)}),
            "paperclip_runtime_primary_url": _without_login(wake.paperclip_runtime_primary_url),
        }
    )


def _work_mode(tidy: dict[str, Any]) -> str | None:
    raw = _object(tidy.get("context"))
    issues = (raw.get("paperclipIssue"), _object(raw.get("paperclipWake")).get("issue"))
    modes = (_object(issue).get("workMode") for issue in issues)
    return next((trim(mode) for mode in modes if isinstance(mode, str) and trim(mode)), None)


def _without_login(address: str | None) -> str | None:
    return None if address is None else _LOGIN.sub("", address)


def _without_login_in(stored: SessionParams | None) -> SessionParams | None:
    return stored and stored.model_copy(update={"repo_url": _without_login(stored.repo_url)})


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _agent_env(config: AdapterConfig, tidy: dict[str, Any]) -> dict[str, str]:
    """The agent's own variables."""
    dropped = {*_host_variables(tidy), "PAPERCLIP_API_KEY", PROVIDERS_VARIABLE}
    return {name: value.get_secret_value() for name, value in config.env.items() if name not in dropped}


def _host_variables(tidy: dict[str, Any]) -> set[str]:
    """Variables that Paperclip adds for its own host. Of temporary folders only those that it made there."""
    config = _object(tidy.get("config"))
    env = _object(config.get("env"))
    hosts = HOST_ONLY | SCRATCH | (AI_CONNECTION if config.get("managedAiConnection") else frozenset())
    made = _object(_object(tidy.get("context")).get("paperclipScratch")).get("dir")
    scratch = [made, *(env.get(name) for name in SCRATCH)]
    return {name for name, value in env.items() if name in hosts or (name in TEMPORARY and value in scratch)}


def _bound_to_secrets(tidy: dict[str, Any]) -> set[str]:
    """Variables whose values are Paperclip's secrets: by the run's manifest, and by the agent's own bindings."""
    manifest = _object(_object(tidy.get("context")).get("paperclipSecrets")).get("manifest")
    listed = [_object(entry).get("envKey") for entry in manifest] if isinstance(manifest, list) else []
    bindings = _object(_object(_object(tidy.get("agent")).get("adapterConfig")).get("env"))
    bound = [name for name, binding in bindings.items() if _object(binding).get("type") == "secret_ref"]
    return {name for name in (*listed, *bound) if isinstance(name, str)}


def _paperclip_env(context: ExecutionContext, tidy: dict[str, Any], host: HostTexts) -> dict[str, str]:
    raw = _object(tidy.get("context"))
    config = _object(tidy.get("config"))
    external = config.get("instructionsRootPath") if config.get("instructionsBundleMode") == "external" else None
    addresses = {
        "PAPERCLIP_WORKSPACE_REPO_URL": context.context.paperclip_workspace.repo_url,
        "PAPERCLIP_RUNTIME_PRIMARY_URL": context.context.paperclip_runtime_primary_url,
    }
    found = {
        **{name: address for name, address in addresses.items() if address != _without_login(address)},
        "PAPERCLIP_WAKE_PAYLOAD_JSON": host.wake_payload,
        "PAPERCLIP_WORKSPACES_JSON": _listing(raw.get("paperclipWorkspaces")),
        "PAPERCLIP_RUNTIME_SERVICE_INTENTS_JSON": _listing(raw.get("paperclipRuntimeServiceIntents")),
        "PAPERCLIP_RUNTIME_SERVICES_JSON": _listing(raw.get("paperclipRuntimeServices")),
        "AGENT_HOME": trim(external) if isinstance(external, str) else None,
        **_runtime_tools(context.runtime_tools),
    }
    return {name: value.replace("\0", "") for name, value in found.items() if value}


def _listing(value: Any) -> str | None:
    return stringify(value) if isinstance(value, list) and value else None


def _runtime_tools(tools: RuntimeTools | None) -> dict[str, str | None]:
    if tools is None:
        return {}
    rest = {name: address for name, address in tools.rest.items() if isinstance(address, str)}
    return {
        "PAPERCLIP_RUNTIME_TOOLS_MCP_URL": tools.mcp_endpoint,
        "PAPERCLIP_RUNTIME_TOOLS_TOKEN": tools.bearer_token.get_secret_value() if tools.bearer_token else None,
        "PAPERCLIP_RUNTIME_TOOLS_EXPIRES_AT": tools.expires_at,
        "PAPERCLIP_RUNTIME_TOOLS_CONNECTIONS_SEARCH_URL": rest.get("connectionsSearch"),
        "PAPERCLIP_RUNTIME_TOOLS_CONNECTION_REQUEST_URL": rest.get("connectionRequest"),
        "PAPERCLIP_RUNTIME_TOOLS_AVAILABLE": ",".join(tools.tools),
        "PAPERCLIP_RUNTIME_TOOLS_GUIDANCE": tools.guidance,
    }


def _bounded(env: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    large = {name: size for name, value in env.items() if (size := len(value.encode())) > BULKY_LIMIT}
    notes = [
        f"{name} is left out: {size} bytes exceed the limit of {BULKY_LIMIT}; the agent can ask Paperclip's API instead"
        for name, size in large.items()
    ]
    return {name: value for name, value in env.items() if name not in large}, notes


def _prompt_source(
    context: ExecutionContext, tidy: dict[str, Any], host: HostTexts, skill_texts: dict[str, str]
) -> PromptSource:
    raw = _object(tidy.get("context"))
    return PromptSource(
        wake=host.wake_prompt,
        instructions=host.instructions,
        skills=skill_texts,
        task_markdown=_prose(raw.get("paperclipTaskMarkdown")),
        session_handoff=_prose(raw.get("paperclipSessionHandoffMarkdown")),
        bootstrap_template=context.config.bootstrap_prompt_template,
        prompt_template=_heartbeat(context.config, host),
        agent=_template_data(_object(tidy.get("agent"))),
        context=_template_data(raw),
    )


def _heartbeat(config: AdapterConfig, host: HostTexts) -> str | None:
    """The template of the heartbeat section: none on a wake that asks for a repair and says so in its own prose."""
    if host.repair_wake and host.wake_prompt.fresh:
        return " "
    return config.prompt_template or host.heartbeat_template


def _skill_texts(config: RunConfig, host: HostTexts) -> tuple[dict[str, str], tuple[str, ...]]:
    """The texts of the selected skills, in Paperclip's order, and warnings."""
    selection = skills.select(config.paperclip_runtime_skills, config.paperclip_skill_sync)
    if host.skills is None:
        unread = (f"Skills are not in the prompt: {_ONLY_THE_PLUGIN}",) if selection.skills else ()
        return {}, (*selection.warnings, *unread)
    keys = [skill.key for skill in selection.skills]
    return {key: host.skills[key] for key in keys if key in host.skills}, selection.warnings


def _unread_instructions(config: RunConfig, host: HostTexts) -> str:
    """The warning of a run whose caller has read no files, as `agent-runs start` does; empty: none."""
    is_unread = config.instructions_file_path and host.instructions is None
    return f"Instructions are not in the prompt: {_ONLY_THE_PLUGIN}" if is_unread else ""


def _prose(value: Any) -> str:
    return trim(value) if isinstance(value, str) else ""


def _template_data(value: Any) -> Any:
    """`value` without secrets, by the names of their fields, and without what the prompt carries elsewhere."""
    if isinstance(value, dict):
        return {
            name: _template_data(item)
            for name, item in value.items()
            if name not in _BULKY and not _SECRET_FIELD.match(name)
        }
    if isinstance(value, list):
        return [_template_data(item) for item in value]
    return _without_login(value) if isinstance(value, str) else value
