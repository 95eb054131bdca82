"""The plan of one attempt: what the agent's configuration, its secrets and the worker's settings come to.

`create_job` creates what is planned here, and a check before a run tries the same by a dry run.
"""

import json
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from agent_runs.agents.opencode.command import command_line, served_turn
from agent_runs.agents.opencode.config import OVERRIDING_VARIABLES
from agent_runs.agents.opencode.config import environment as opencode_environment
from agent_runs.agents.opencode.merge import AGENT, OPERATOR, Merged, merge, unset_variables
from agent_runs.agents.opencode.permissions import asks_questions
from agent_runs.agents.profile import AgentProfile
from agent_runs.contracts.messages import CreateJob, PromptBundle
from agent_runs.contracts.pod import DATA_DIRECTORY, SKILLS_DIRECTORY
from agent_runs.contracts.request import OPENCODE, RunConfig, Secrets
from agent_runs.contracts.start import SealedJoin
from agent_runs.contracts.syntax import is_absolute_url
from agent_runs.job.acp_plan import acp_start, profile_of
from agent_runs.job.agent_pod import AgentPodSettings, ApiProxy, Driven, working_directory
from agent_runs.job.containers import CONFIG_FILE, fixed_variables
from agent_runs.job.manifest import JobPlan, plan_job
from agent_runs.job.secrets import SERVE_KEY, script
from agent_runs.paperclip.environment import environment as paperclip_environment
from agent_runs.paperclip.proxy_env import API_KEY, API_URL, TOOLS_TOKEN, Placeholders, route_through_proxy
from agent_runs.pod.sidecar.tokens import KEY_PLACEHOLDER, TOOLS_PLACEHOLDER

PLACEHOLDERS: Final = Placeholders(key=KEY_PLACEHOLDER, tools=TOOLS_PLACEHOLDER)


def attempt_plan(
    input: CreateJob,
    secrets: Secrets,
    inherited: dict[str, str],
    opencode: dict[str, Any],
    settings: AgentPodSettings,
    carried: bytes | None = None,
) -> JobPlan:
    """Returns everything to create for one attempt. Pure.

    Args:
        inherited: literal variables of the worker's own pod.
        opencode: the operator's OpenCode configuration.
        carried: how the pod reaches its carried workspace.

    Raises:
        InvalidRequest: names the field and the remedy.
        JobCreateFailed: the content does not fit into a Secret.
    """
    request, config, directory = input.request, input.config, working_directory(input)
    variables = paperclip_environment(request, secrets, api_url=settings.paperclip_api_url, inherited=inherited)
    if secrets.run_id != request.run_id:
        variables["PAPERCLIP_RUN_ID"] = secrets.run_id
    skills = sent_skills(input.prompt, secrets)
    names = frozenset(variables)  # the runner adds those that the proxy takes away
    variables, servers, proxy = route_through_api_proxy(variables, secrets)
    if config.agent != OPENCODE:
        plan = _acp_plan(input, variables, servers, settings, proxy, skills, carried)
        ignored = ["config.opencode has no effect: the agent is not OpenCode"] if secrets.opencode else []
        return replace(plan, warnings=(*plan.warnings, *ignored))
    title = f"{request.agent.name} {input.attempt.transcript}"
    session, version = (input.session.session_id, input.session.agent_version) if input.session else (None, None)
    argv = command_line(
        model=config.model,
        directory=directory,
        title=title,
        session_id=session,
        variant=config.variant,
        extra_args=config.extra_args,
    )
    turn = served_turn(config, title=title, session_id=session)
    asks = turn is not None and config.ask_timeout_sec > 0
    merged = merged_config(input, secrets, servers, opencode, asks=asks)
    fixed = opencode_environment(
        config_file=CONFIG_FILE,
        directory=directory,
        plugins=merged.has_plugins,
        features=config.opencode_features,
    )
    environment = without_overrides(variables) | fixed
    plan = plan_job(
        input,
        argv=argv,
        environment=environment,
        opencode_config=json.dumps(merged.config),
        settings=settings,
        proxy=proxy,
        driven=Driven(
            script(SERVE_KEY),
            {
                **turn,
                "config": CONFIG_FILE,
                "session_version": version,
                "asks": asks,
                "asks_questions": asks_questions(merged.config["permission"]),
            },
            keep_warm_sec(config, merged.config, proxy),
        )
        if turn
        else None,
        skills=skills,
        carried=carried,
    )
    unset = _unset_variables(input, secrets, opencode, names | environment.keys())
    return replace(plan, warnings=(*plan.warnings, *merged.notes, *unset))


def _acp_plan(
    input: CreateJob,
    variables: dict[str, str],
    servers: dict[str, dict[str, Any]],
    settings: AgentPodSettings,
    proxy: ApiProxy | None,
    skills: dict[str, str],
    carried: bytes | None,
) -> JobPlan:
    profile = profile_of(input.config, settings.agents)
    start = acp_start(
        input,
        profile,
        variables=variables,
        mcp_servers=servers,
        path_variables=proxy.path_variables if proxy else (),
    )
    plan = plan_job(
        input,
        argv=start.argv,
        environment=start.environment,
        opencode_config=None,
        settings=settings,
        proxy=proxy,
        driven=Driven(script("acp.sh"), start.turn, acp_keep_warm_sec(input.config, profile, proxy), start.files),
        skills=skills,
        carried=carried,
    )
    return replace(plan, warnings=(*plan.warnings, *start.warnings))


def sent_skills(prompt: PromptBundle, secrets: Secrets) -> dict[str, str]:
    """The files of those skills that the prompt leaves out because the pod has their folders from the worker."""
    taken = {folder.removeprefix(f"{SKILLS_DIRECTORY}/") for folder in prompt.skill_folders}
    return {path: text for path, text in secrets.skill_files.items() if path.partition("/")[0] in taken}


def keep_warm_sec(config: RunConfig, opencode: Mapping[str, Any], proxy: ApiProxy | None) -> int:
    """How long the pod may wait for the agent's next run; 0: not everything that it has of a run can be exchanged.

    The proxy has the token. Shells of OpenCode's server get the variables of the next run, but neither its plugins nor
    its own MCP servers do, nor a shell that the configuration names. Language servers end with the run, and OpenCode
    starts none a second time.
    """
    servers = opencode.get("mcp") or {}
    local = any(isinstance(each, Mapping) and each.get("type") == "local" for each in servers.values())
    programs = local or opencode.get("plugin") or opencode.get("shell") or "lsp" in config.opencode_features
    fixed = proxy is None or programs or config.workspace == "carried"
    return 0 if fixed or config.retain_jobs else config.keep_warm_sec


def acp_keep_warm_sec(config: RunConfig, profile: AgentProfile, proxy: ApiProxy | None) -> int:
    """The same for an agent that speaks ACP: its process, and with it its MCP servers, starts anew with each run."""
    rests = profile.rests and proxy is not None and not config.retain_jobs and config.workspace != "carried"
    return config.keep_warm_sec if rests else 0


def merged_config(
    input: CreateJob,
    secrets: Secrets,
    mcp_servers: dict[str, dict[str, Any]],
    opencode: dict[str, Any],
    *,
    asks: bool,
) -> Merged:
    config = input.config
    return merge(
        model=config.model,
        agent=secrets.opencode,
        operator=opencode,
        mcp_servers=mcp_servers,
        skip_permissions=config.dangerously_skip_permissions,
        asks=asks,
        skill_folders=input.prompt.skill_paths,
        readable=instructions_folders(config),
        features=config.opencode_features,
    )


def instructions_folders(config: RunConfig) -> list[str]:
    """The folder of the agent's instructions, which it may read wherever it works; none when it is not in the pod."""
    folder = posixpath.dirname(posixpath.normpath(config.instructions_file_path or "/"))
    return [folder] if folder.startswith(f"{DATA_DIRECTORY}/") else []


def _unset_variables(
    input: CreateJob, secrets: Secrets, opencode: dict[str, Any], names: Iterable[str]
) -> tuple[str, ...]:
    """Notes about variables that the configuration refers to and that the pod does not get, as far as is known: the
    operator's configuration may refer to what is in inherited Secrets, whose content no worker reads."""
    known = {*names, *fixed_variables(input), *(each.name for each in input.profile.env_references)}
    found = unset_variables(secrets.opencode, known, AGENT)
    found += unset_variables(secrets.mcp_servers, known, "config.mcpServers")
    return found if input.profile.env_from else (*found, *unset_variables(opencode, known, OPERATOR))


def route_through_api_proxy(
    variables: dict[str, str], secrets: Secrets
) -> tuple[dict[str, str], dict[str, dict[str, Any]], ApiProxy | None]:
    """The agent's environment and MCP servers, changed to reach Paperclip through the pod's API proxy, and the proxy.

    Without an absolute address of Paperclip and a token there is no proxy, and nothing is changed.
    """
    if not (variables.get(API_KEY) and is_absolute_url(variables.get(API_URL, ""))):
        return variables, secrets.mcp_servers, None
    routed = route_through_proxy(variables, secrets.mcp_servers, PLACEHOLDERS)
    proxy = ApiProxy(
        upstream=routed.upstream,
        run_id=secrets.run_id,
        token=routed.token,
        tools_token=routed.tools_token,
        path_variables=routed.path_variables,
    )
    return routed.environment, routed.mcp_servers, proxy


def replace_tokens(secrets: Secrets, run_id: str, tokens: SealedJoin) -> Secrets:
    """The secrets of the run that the agent was started for, with run id and tokens of a later run."""
    if not tokens.auth_token:
        return secrets
    tools = {TOOLS_TOKEN: tokens.tools_token} if tokens.tools_token else {}
    return secrets.model_copy(
        update={
            "run_id": run_id,
            "auth_token": tokens.auth_token,
            "paperclip_env": {**secrets.paperclip_env, **tools},
        }
    )


def without_overrides(variables: dict[str, str]) -> dict[str, str]:
    """The agent's environment without the variables that would override the OpenCode configuration of the run."""
    return {name: value for name, value in variables.items() if name not in OVERRIDING_VARIABLES}
