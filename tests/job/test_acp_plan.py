"""What a profile comes to in one attempt: its Job, its Secret, what the driver is to do, and what it cannot do."""

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from agent_runs.agents.profile import AgentProfile, load
from agent_runs.contracts.errors import AgentVersionUnsupported, InvalidRequest
from agent_runs.contracts.messages import EnvReference, PodProfile
from agent_runs.contracts.request import RunConfig, SessionParams
from agent_runs.job.acp_plan import acp_servers, agent_skills
from agent_runs.job.agent_pod import AgentPodSettings
from agent_runs.job.attempt_plan import attempt_plan
from agent_runs.job.checks import Checks, agent_warnings
from agent_runs.job.manifest import JobPlan
from agent_runs.job.pod_profile import PodOverrides
from agent_runs.job.policy import Policy
from agent_runs.job.secrets import SCRIPT_KEYS
from agent_runs.job.volumes import keeps_sessions
from agent_runs.paperclip.preparation import prepare
from tests.job.inputs import create_job_input, environment, main_container, mounts, objections, pod_spec, volumes
from tests.paperclip.contexts import captured

PROFILES = load()
SETTINGS = AgentPodSettings(paperclip_api_url="http://paperclip:3100", agents=PROFILES)
CANARY = "canary-7c1e"


def planned(
    name: str,
    env: dict[str, str] | None = None,
    session: SessionParams | None = None,
    settings: AgentPodSettings = SETTINGS,
    *,
    run: dict[str, Any] | None = None,
    **config: Any,
) -> JobPlan:
    """The plan of this agent.

    Args:
        run: what else the context has, of the run alone.
    """
    context = captured("ctx-2") | (run or {})
    context["config"] |= {"agent": name, "model": "fake/scenario/text", **config}
    context["config"]["env"] = env or {}
    prepared = prepare(context)
    input = create_job_input(request=prepared.request, session=session)
    return attempt_plan(input, prepared.secrets, {}, {}, settings)


def digest(plan: JobPlan) -> str:
    """Of the pod, which may rest."""
    assert plan.claim is not None
    assert plan.claim["pod"] == turn(plan)["pod"]
    return str(plan.claim["pod"])


def content(plan: JobPlan, key: str) -> str:
    return base64.b64decode(plan.run_secret["data"][key]).decode()


def turn(plan: JobPlan) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(content(plan, "turn.json"))
    return read


@pytest.mark.parametrize("name", PROFILES)
def test_the_objects_of_any_agent_are_such_as_kubernetes_takes(name: str) -> None:
    plan = planned(name)
    assert list(objections(plan)) == []
    args = main_container(plan)["args"]
    assert args[args.index("--") + 1] == PROFILES[name].command[0]
    assert args[args.index("--serve") + 1] == "/agent-run/secret/serve.sh"


@pytest.mark.parametrize("name", PROFILES)
def test_a_pod_of_another_agent_has_nothing_of_opencodes(name: str) -> None:
    plan = planned(name)
    assert [each for each in (*environment(plan), *mounts(plan), *volumes(plan)) if "opencode" in each.lower()] == []
    assert "opencode.json" not in plan.run_secret["data"]
    assert "--logins" not in main_container(plan)["args"]
    assert plan.database is None


@pytest.mark.parametrize("name", PROFILES)
def test_every_file_of_a_profile_is_in_the_agents_container_and_in_the_list(name: str) -> None:
    plan = planned(name)
    listed = dict(line.split("\t") for line in content(plan, "agent-files").splitlines())
    assert list(listed.values()) == [f"$HOME/{path}" for path in PROFILES[name].files]
    secret = next(each for each in pod_spec(plan)["volumes"] if each["name"] == "run-secret")["secret"]
    assert {*listed, "agent-files", "agent-skills", "serve.sh", *SCRIPT_KEYS} == {
        each["key"] for each in secret["items"]
    }


def with_skills(name: str, *skills: tuple[str, str]) -> JobPlan:
    """A plan with skills: their names and folders."""
    bundle = create_job_input().prompt.model_copy(
        update={"skill_names": tuple(each for each, _ in skills), "skill_folders": tuple(each for _, each in skills)}
    )
    prepared = prepare(captured("ctx-2"))
    given = create_job_input(config={"agent": name, "model": "fake/text"}, prompt=bundle)
    return attempt_plan(given, prepared.secrets, {}, {}, SETTINGS)


@pytest.mark.parametrize("name", PROFILES)
def test_skills_are_listed_with_the_folder_where_the_agent_looks_for_them(name: str) -> None:
    plan = with_skills(name, ("deploy", "a/deploy--1"), ("../up", "a/up"), ("a b", "a/b c"), ("x", "a\nb"))
    assert content(plan, "agent-skills").splitlines() == [
        PROFILES[name].skills,
        "deploy\t/paperclip/a/deploy--1",
        "up\t/paperclip/a/up",
    ]
    assert content(with_skills(name), "agent-skills") == f"{PROFILES[name].skills}\n"  # links of earlier runs go
    secret = next(each for each in pod_spec(plan)["volumes"] if each["name"] == "run-secret")["secret"]
    assert "agent-skills" in {each["key"] for each in secret["items"]}


def test_a_bundle_of_an_earlier_release_names_skills_by_their_folders() -> None:
    bundle = create_job_input().prompt.model_copy(update={"skill_folders": ("a/deploy", "a/deploy--2")})
    listed = agent_skills(PROFILES["claude"], bundle)["agent-skills"].decode()
    assert listed == ".claude/skills\ndeploy\t/paperclip/a/deploy\ndeploy--2\t/paperclip/a/deploy--2\n"


def test_without_a_folder_for_skills_the_prompt_names_them_and_a_warning_says_so() -> None:
    goose = AgentProfile(name="goose", title="goose", command=("goose",))
    assert agent_skills(goose, create_job_input().prompt) == {}
    wanted = {"paperclipRuntimeSkills": [{"key": "deploy", "source": "/paperclip/a/deploy", "required": True}]}
    said = "Skills are not linked where goose looks for them: the prompt names their folders"
    assert said in agent_warnings(config("goose", **wanted), goose)
    assert said not in agent_warnings(config("goose", **wanted, skills="inline"), goose)
    assert said not in agent_warnings(config("goose"), goose)


def test_the_turn_says_all_that_the_driver_needs() -> None:
    session = SessionParams(session_id="abc", cwd="/paperclip/app", agent="claude")
    read = turn(planned("claude", session=session))
    assert (read["driver"], read["session"], read["model"]) == ("acp", "abc", "scenario/text")
    assert (read["directory"], read["prompt"], read["start_timeout"]) == (
        "/paperclip/app",
        "/tmp/prompt/prompt.txt",
        240,
    )
    profile = read["profile"]
    assert (profile["permissions"], profile["usage"]) == ("allow", "result_usage")
    assert profile["unknown_session"][0] == {"code": -32002, "matches": "Resource not found"}
    assert profile["errors"][0].keys() == {"code", "matches", "name", "status"}


@pytest.mark.parametrize("name", PROFILES)
def test_runs_of_one_configuration_may_have_one_pod(name: str) -> None:
    key = PROFILES[name].keys[0]
    first, other_run = planned(name, {key: "k"}), {"runId": "another", "authToken": CANARY}
    second = planned(name, {key: "k"}, SessionParams(session_id="abc", agent=name), run=other_run)
    assert digest(second) == digest(first)
    assert second.claim is not None
    assert second.claim["tokens"]["token"] == CANARY
    assert (second.claim["turn"]["session"], second.claim["environment"]["PAPERCLIP_RUN_ID"]) == ("abc", "another")
    assert CANARY not in json.dumps([second.claim["turn"], second.claim["environment"]])


@pytest.mark.parametrize("name", PROFILES)
def test_what_an_agent_gets_at_its_start_is_part_of_what_its_pod_is(name: str) -> None:
    key = PROFILES[name].keys[0]
    other_file = {**PROFILES[name].files, ".other": "other"}
    changed = {name: PROFILES[name].model_copy(update={"files": other_file})}
    plans = [
        planned(name, {key: "k"}),
        planned(name, {key: "another key"}),
        planned(name, {key: "k", "MINE": "mine"}),
        planned(name, {key: "k"}, model="fake/another"),
        planned(name, {key: "k"}, settings=replace(SETTINGS, agents=changed)),
        *([planned(name, {key: "k"}, variant="high")] if PROFILES[name].takes_effort else []),
        *([planned(name, {key: "k"}, dangerouslySkipPermissions=False)] if PROFILES[name].permissions.reject else []),
    ]
    assert len({*map(digest, plans)}) == len(plans)


def test_a_pod_rests_only_if_its_profile_says_so_and_nothing_of_the_run_would_stay_in_it() -> None:
    goose = AgentProfile(name="goose", title="goose", command=("goose",))
    silent = replace(SETTINGS, agents={"goose": goose})
    resting = replace(SETTINGS, agents={"goose": goose.model_copy(update={"rests": True})})
    assert planned("goose", settings=silent).claim is None
    assert "keep_warm" not in turn(planned("goose", settings=silent))
    assert planned("goose", settings=resting).claim is not None
    without_proxy = replace(resting, paperclip_api_url=None)
    assert planned("goose", settings=without_proxy, run={"authToken": None}).claim is None
    for config in ({"keepWarmSec": 0}, {"retainJobs": True}):
        assert planned("goose", settings=resting, **config).claim is None


def test_variables_of_the_profile_count_before_those_of_the_configuration() -> None:
    plan = planned("claude", {"ANTHROPIC_MODEL": "other", "CLAUDE_CONFIG_DIR": "/elsewhere", "MINE": "mine"})
    sealed = {name: content(plan, f"env.{name}") for name in ("ANTHROPIC_MODEL", "CLAUDE_CONFIG_DIR", "MINE")}
    assert "ANTHROPIC_MODEL, CLAUDE_CONFIG_DIR: no effect: the profile of claude" in str(plan.warnings)
    assert sealed == {"ANTHROPIC_MODEL": "scenario/text", "CLAUDE_CONFIG_DIR": "/home/agent/.claude", "MINE": "mine"}
    assert "CLAUDE_CODE_EFFORT_LEVEL" not in environment(plan)
    assert content(planned("claude", variant="high"), "env.CLAUDE_CODE_EFFORT_LEVEL") == "high"


def test_the_address_of_the_provider_is_that_of_the_variable() -> None:
    plan = planned("codex", {"OPENAI_BASE_URL": "http://gateway/v1"})
    assert 'base_url = "http://gateway/v1"' in content(plan, "agent-file-1")
    assert 'base_url = "https://api.openai.com/v1"' in content(planned("codex"), "agent-file-1")


@pytest.mark.parametrize("name", PROFILES)
def test_no_secret_is_in_the_job(name: str) -> None:
    headers = {"Authorization": f"Bearer {CANARY}"}
    servers = {"remote": {"url": f"https://mcp.example/{CANARY}", "headers": headers}, "local": {"command": CANARY}}
    plan = planned(name, dict.fromkeys(PROFILES[name].keys, CANARY), mcpServers=servers)
    assert CANARY not in json.dumps(plan.job)
    assert CANARY not in repr(plan)


def test_mcp_servers_have_the_protocols_spelling() -> None:
    servers = {
        "local": {"type": "local", "command": ["node", "{env:TOOL}"], "environment": {"A": "{env:NONE}b"}},
        "claude": {"command": "npx", "args": ["-y", "tool"], "env": {"KEY": "value"}},
        "remote": {"type": "remote", "url": "{env:PAPERCLIP_API_URL}/mcp", "headers": {"X": "{env:TOOL}"}},
        "off": {"type": "local", "command": ["x"], "enabled": False},
    }
    found, warnings = acp_servers(servers, PROFILES["claude"], {"TOOL": "tool.js"})
    assert found == [
        {"name": "local", "command": "node", "args": ["tool.js"], "env": [{"name": "A", "value": "b"}]},
        {"name": "claude", "command": "npx", "args": ["-y", "tool"], "env": [{"name": "KEY", "value": "value"}]},
        {
            "type": "http",
            "name": "remote",
            "url": "{env:PAPERCLIP_API_URL}/mcp",
            "headers": [{"name": "X", "value": "tool.js"}],
        },
    ]
    assert warnings == ()
    assert acp_servers(servers, PROFILES["pi"], {}) == (
        [],
        ("MCP servers local, claude, remote are left out: pi takes none",),
    )


def test_what_an_mcp_server_refers_to_is_the_environment_of_the_agents_process() -> None:
    tools = "PAPERCLIP_RUNTIME_TOOLS_MCP_URL"
    names = ("TMPDIR", "PWD", "NODE_ENV", "XDG_CACHE_HOME", "MINE", "ANTHROPIC_MODEL", tools)
    servers = {"local": {"command": "tool", "env": {name: f"{{env:{name}}}" for name in names}}}
    plan = planned("claude", {"MINE": "mine", tools: "http://paperclip:3100/tools"}, mcpServers=servers)
    (server,) = turn(plan)["profile"]["mcp_servers"]
    found = {each["name"]: each["value"] for each in server["env"]}
    container = environment(plan)
    fixed = {name: container[name] for name in ("TMPDIR", "PWD", "NODE_ENV", "XDG_CACHE_HOME")}
    own = {name: content(plan, f"env.{name}") for name in ("MINE", "ANTHROPIC_MODEL")}
    address = {tools: f"{{env:PAPERCLIP_API_URL}}{content(plan, f'env.{tools}')}"}
    assert found == fixed | own | address
    assert found["TMPDIR"] != "/tmp"


def test_a_missing_key_and_an_unreadable_address_are_warnings() -> None:
    assert "Codex gets no OPENAI_API_KEY" in str(planned("codex").warnings)
    assert "gets no" not in str(planned("codex", {"OPENAI_API_KEY": "k"}).warnings)
    reference = EnvReference(name="OPENAI_BASE_URL", value_from={"secretKeyRef": {"name": "s", "key": "k"}})
    pod = PodProfile(namespace="agents", image="agent:1", data_claim="data", env_references=(reference,))
    prepared = prepare(captured("ctx-2"))
    input = create_job_input(config={"agent": "codex", "model": "openai/gpt"}, profile=pod)
    plan = attempt_plan(input, prepared.secrets, {}, {}, SETTINGS)
    assert "OPENAI_BASE_URL comes from a Secret or ConfigMap" in str(plan.warnings)


def test_sessions_are_kept_with_the_home() -> None:
    assert keeps_sessions(create_job_input(config={"agent": "claude", "agentDbMode": "ephemeral"}))
    without = PodProfile(namespace="agents", image="agent:1")
    assert not keeps_sessions(create_job_input(config={"agent": "claude"}, profile=without))


def config(name: str, **fields: Any) -> RunConfig:
    return RunConfig.model_validate({"model": "fake/text", "agent": name, **fields})


@pytest.mark.parametrize(
    ("name", "fields", "said"),
    [
        ("claude", {"transport": "serve"}, ["config.transport"]),
        (
            "claude",
            {"extraArgs": ["--x"], "opencodeFeatures": ["lsp"]},
            ["config.opencodeFeatures", "config.extraArgs"],
        ),
        ("claude", {"agentDbMode": "dedicated_pvc"}, ["config.agentDbMode"]),
        ("claude", {"variant": "high", "maxSteps": 3}, []),
        ("gemini", {"variant": "high"}, ["config.variant"]),
        ("codex", {"maxCostUsd": 1}, ["config.maxCostUsd has no effect", "end no turn of Codex"]),
        ("codex", {"maxCostUsd": 1, "model": "openai/gpt-5.4"}, ["end no turn of Codex"]),
        ("qwen", {"maxTokens": 1}, []),
    ],
)
def test_what_an_agent_cannot_do_is_said(name: str, fields: dict[str, Any], said: list[str]) -> None:
    warnings = list(agent_warnings(config(name, **fields), PROFILES[name]))
    assert len(warnings) == len(said)
    assert all(text in warning for text, warning in zip(said, warnings, strict=True))


IMAGES = dict.fromkeys(PROFILES, "agent:1")


async def refusal(checked: RunConfig, images: Mapping[str, str] = IMAGES) -> str:
    with pytest.raises(InvalidRequest) as refused:
        await Checks(agents=PROFILES, overrides=PodOverrides(agent_images=images)).check(checked)
    return refused.value.message


async def test_a_configuration_that_names_no_agent_of_the_worker_is_refused_with_those_there_are() -> None:
    assert "there is no agent goose: choose one of opencode, claude, codex" in await refusal(config("goose"))


async def test_an_agent_without_an_image_is_refused_with_the_setting() -> None:
    assert "AGENT_RUNS_AGENT_IMAGES=pi=IMAGE" in await refusal(config("pi"), images={})
    await Checks(agents=PROFILES).check(config("pi", image="agent-pi:1"))


@pytest.mark.parametrize(
    ("name", "image", "refused"),
    [
        ("opencode", "ghcr.io/anomalyco/opencode:3.0.1", "OpenCode 3.0.1"),
        ("opencode", "opencode:1.17.19@sha256:00", "OpenCode 1.17.19"),
        ("opencode", "registry:5000/team/opencode:2.1.0", None),
        ("opencode", "registry/opencode-of-ours:3.0.1", None),
        ("opencode", "opencode:3.0.1-ours", None),
        ("opencode", "opencode@sha256:00", None),
        ("codex", "registry/agent-codex:3.0.0", "Codex 3.0.0"),
        ("codex", "registry/agent-codex:2.7.1", None),
        ("codex", "registry/agent:3.0.0", None),
    ],
)
async def test_an_image_whose_tag_is_an_unsupported_version_is_refused_before_anything_is_created(
    name: str, image: str, refused: str | None
) -> None:
    checks = Checks(agents=PROFILES)
    if refused is None:
        await checks.check(config(name, image=image))
        return
    with pytest.raises(AgentVersionUnsupported) as error:
        await checks.check(config(name, image=image))
    assert error.value.message.startswith(f"image {image}: {refused} is not supported: supported are ")


@pytest.mark.parametrize("name", ["codex", "pi"])
async def test_an_agent_that_denies_nothing_is_refused_to_whom_wants_that(name: str) -> None:
    assert "config.dangerouslySkipPermissions" in await refusal(config(name, dangerouslySkipPermissions=False))


@pytest.mark.parametrize(("name", "mode"), [("gemini", "auto_edit"), ("qwen", "auto-edit")])
def test_permissions_reach_the_agent_and_the_driver(name: str, mode: str) -> None:
    plan = planned(name, dangerouslySkipPermissions=False)
    assert main_container(plan)["args"][-1] == mode
    assert turn(plan)["profile"]["permissions"] == "ask"
    quiet = planned(name, dangerouslySkipPermissions=False, askTimeoutSec=0)
    assert turn(quiet)["profile"]["permissions"] == "reject"
    assert turn(planned(name))["profile"]["permissions"] == "allow"


async def test_a_model_that_would_be_read_as_an_option_is_refused() -> None:
    assert "config.model" in await refusal(config("gemini", model="google/--yolo"))


def test_the_policy_says_which_agents_may_be_chosen() -> None:
    policy = Policy.parse("agents: [opencode, claude]", "policy.yaml")
    policy.check(config("claude"))
    with pytest.raises(Exception, match=r"agent: 'codex' is not allowed by agents of the operator's policy"):
        policy.check(config("codex"))


def test_a_rest_that_a_profile_does_not_allow_is_said_to_whom_asks_for_one() -> None:
    goose = AgentProfile(name="goose", title="goose", command=("goose",))
    said = "config.keepWarmSec has no effect: the profile of goose does not let its pod rest"
    assert said in agent_warnings(config("goose", keepWarmSec=60), goose)
    assert "keepWarmSec" not in str(
        [*agent_warnings(config("goose"), goose), *agent_warnings(config("goose", keepWarmSec=0), goose)]
    )


def test_a_session_that_an_agent_cannot_load_is_no_session() -> None:
    goose = AgentProfile(name="goose", title="goose", command=("goose",), loads_sessions=False)
    context = captured("ctx-2")
    context["config"] |= {"agent": "goose"}
    context["runtime"] = {"sessionParams": {"sessionId": "abc", "agent": "goose"}}
    request = Checks(agents={"goose": goose}).bounded(prepare(context).request)
    assert request.runtime.session_params is None
    assert "session abc is not resumed: goose cannot load sessions" in request.notes
