"""The Job of an attempt: valid for Kubernetes whatever an agent is called and configured, and free of secrets."""

import base64
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agent_runs.contracts.errors import InvalidRequest, JobCreateFailed, PromptTooLarge
from agent_runs.contracts.messages import EnvReference, PodProfile, SecretMount
from agent_runs.contracts.request import SessionParams, Workspace
from agent_runs.job.agent_pod import AgentPodSettings, ApiProxy, Driven, literal
from agent_runs.job.containers import INIT_SCRIPT
from agent_runs.job.manifest import JobPlan
from agent_runs.job.secrets import SCRIPT_KEYS, SECRET_LIMIT, TOKEN_KEYS, prompt_secret, script
from agent_runs.job.volumes import keeps_sessions
from agent_runs.kube.objects import Metadata
from agent_runs.kube.ownership import CONTENT_DIGEST, belongs_to, same_owner
from tests.job.inputs import (
    AGENT,
    create_job_input,
    environment,
    job_plan,
    main_container,
    mounts,
    objections,
    pod_spec,
    volumes,
)

IDENTIFIER = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}", fullmatch=True)
TEXT = st.text(max_size=80)
LABEL_KEY = st.from_regex(
    r"([a-z0-9]([-a-z0-9.]{0,20}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,20}[A-Za-z0-9])?", fullmatch=True
)
CONFIG = st.fixed_dictionaries(
    {},
    optional={
        "labels": st.dictionaries(LABEL_KEY, TEXT, max_size=4),
        "nodeSelector": st.dictionaries(LABEL_KEY, st.from_regex(r"[a-z0-9.-]{0,70}", fullmatch=True), max_size=3),
        "timeoutSec": st.integers(0, 86400),
        "graceSec": st.integers(0, 600),
        "retainJobs": st.booleans(),
        "agentDbMode": st.sampled_from(["workspace_subpath", "dedicated_pvc", "ephemeral"]),
        "serviceAccountName": st.one_of(st.none(), TEXT),
        "cwd": st.one_of(st.none(), TEXT, st.just("/paperclip/x")),
        "image": st.one_of(st.none(), TEXT, st.just("registry.example/x:1")),
        "resources": st.fixed_dictionaries(
            {}, optional={"requests": st.fixed_dictionaries({}, optional={"cpu": st.sampled_from(["1", "500m", "64"])})}
        ),
    },
)
VARIABLES = st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,40}", fullmatch=True), TEXT, max_size=6)
FIELDS = {
    *("contract", "labels", "nodeSelector", "serviceAccountName", "cwd", "image", "resources.requests.cpu"),
    *("agent.id", "env", "paperclipWorkspace.cwd"),
}
PATH = st.one_of(
    st.none(),
    TEXT,
    st.lists(
        st.sampled_from(["paperclip", "instances", "default", "workspaces", "projects", "a:b", "..", ".", ".x", "w"]),
        max_size=7,
    ).map(lambda parts: "/" + "/".join(parts)),
)
WORKSPACE = st.builds(Workspace, cwd=PATH, worktree_path=PATH, agent_home=PATH)
MOUNT = st.builds(
    SecretMount,
    volume_name=st.sampled_from(["data", "a", "b", "runner"]),
    secret_name=st.just("s"),
    mount_path=st.sampled_from(["/paperclip", "/paperclip/.ssh", "/etc/x", "/etc/x/", "/", "/tmp/prompt/y", "/a:b"]),
)


@given(
    agent=IDENTIFIER,
    run=IDENTIFIER,
    name=TEXT,
    task=st.one_of(st.none(), TEXT),
    config=CONFIG,
    variables=VARIABLES,
    secret_mounts=st.lists(MOUNT, max_size=4),
    claim=st.one_of(st.none(), st.just("data")),
    session=st.one_of(st.none(), st.builds(SessionParams, session_id=TEXT)),
    workspace=WORKSPACE,
    workspaces=st.lists(PATH.filter(bool), max_size=3),
)
def test_whatever_passes_the_contracts_is_valid_or_refused_with_its_name(
    agent: str,
    run: str,
    name: str,
    task: str | None,
    config: dict[str, Any],
    variables: dict[str, str],
    secret_mounts: list[SecretMount],
    claim: str | None,
    session: SessionParams | None,
    workspace: Workspace,
    workspaces: list[str],
) -> None:
    profile = PodProfile(namespace="agents", image="i", data_claim=claim, secret_mounts=tuple(secret_mounts))

    def attempt() -> JobPlan:
        return job_plan(
            create_job_input(
                agent=agent,
                run=run,
                agent_name=name,
                task_id=task,
                task_key=task,
                config=config,
                profile=profile,
                session=session,
                workspace=workspace,
                workspaces=tuple(workspaces),
            ),
            environment=variables,
        )

    plan = plan_or_refusal(attempt)
    if isinstance(plan, str):
        assert plan in FIELDS
    else:
        assert list(objections(plan)) == []


def test_everything_of_an_attempt_is_in_the_namespace_of_its_prompt() -> None:
    elsewhere = PodProfile(namespace="worker", image="i")
    plan = job_plan(create_job_input(profile=elsewhere, config={"agentDbMode": "dedicated_pvc"}))
    assert plan.database is not None
    assert {each["metadata"]["namespace"] for each in (plan.job, plan.run_secret, plan.database)} == {"agents"}


def plan_or_refusal(attempt: Callable[[], JobPlan]) -> JobPlan | str:
    """The plan, or the field that the refusal names."""
    try:
        return attempt()
    except ValidationError:
        return "contract"
    except InvalidRequest as refused:
        return re.split(r"[:\[]", refused.message)[0]


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0"), min_size=8, max_size=30))
def test_no_secret_is_in_the_job(noise: str) -> None:
    canary = f"canary-{noise}-canary"
    plan = job_plan(environment={"TOKEN": canary, "OTHER": f"x{canary}"}, opencode_config=canary)
    assert canary not in json.dumps(plan.job, ensure_ascii=False)
    assert canary not in repr(plan)
    assert base64.b64decode(plan.run_secret["data"]["env.TOKEN"]).decode() == canary


def test_images_are_in_the_pod_as_they_are_named_with_their_digests() -> None:
    agent, init, sidecar = (f"registry.example:5000/{name}@sha256:{'a' * 64}" for name in ("agent:1.2", "init", "py"))
    settings = AgentPodSettings(init_image=init, sidecar_image=sidecar)
    spec = pod_spec(job_plan(create_job_input(config={"image": agent}), settings=settings))
    images = {each["name"]: each["image"] for each in spec["initContainers"] + spec["containers"]}
    assert images == {"write-prompt": init, "sidecar": sidecar, "opencode": agent}


def test_a_variable_named_like_a_file_is_not_that_file() -> None:
    plan = job_plan(environment={"runner.sh": "no", "opencode.json": "no"}, opencode_config="config")
    data = {key: base64.b64decode(value) for key, value in plan.run_secret["data"].items()}
    ours = {"runner.sh", "opencode.json"}
    assert {key: value for key, value in data.items() if key in ours or key.startswith("env.")} == {
        "runner.sh": script("runner.sh"),
        "opencode.json": b"config",
        "env.runner.sh": b"no",
        "env.opencode.json": b"no",
    }


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        pytest.param("x" * 131_072, "E2BIG", id="too large for Linux"),
        pytest.param("a\0b", "NUL", id="NUL"),
        pytest.param("\ud800", "Unicode", id="half a character"),
    ],
)
def test_a_value_that_no_variable_can_have_is_refused_with_its_name_without_quoting_it(
    value: str, problem: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"TOKEN.*{problem}|{problem}.*TOKEN") as refused:
        job_plan(environment={"TOKEN": value})
    assert value not in str(refused.value)


def test_the_largest_value_that_linux_takes_is_taken() -> None:
    value = "x" * (128 * 1024 - len("TOKEN=") - 1)
    job_plan(environment={"TOKEN": value})
    assert subprocess.run(["/bin/true"], env={"TOKEN": value}, check=True).returncode == 0
    with pytest.raises(OSError, match="too long"):
        subprocess.run(["/bin/true"], env={"TOKEN": value + "x"}, check=True)


def test_what_does_not_fit_into_a_secret_is_refused_with_a_remedy() -> None:
    large = {f"V{n}": "x" * 130_000 for n in range(9)}
    with pytest.raises(JobCreateFailed, match="make the largest variables smaller"):
        job_plan(environment=large)
    with pytest.raises(PromptTooLarge, match="shorten"):
        prompt_secret(create_job_input().attempt, "agents", b"x" * (SECRET_LIMIT + 1))


@pytest.mark.parametrize("argument", ["a\0b", "x" * 131_072, "ü" * 65_536])
def test_an_argument_that_linux_would_not_pass_on_is_refused(argument: str) -> None:
    with pytest.raises(InvalidRequest, match="extraArgs"):
        job_plan(argv=["opencode", argument])


def test_an_argument_may_be_as_long_as_linux_passes_on() -> None:
    longest = "x" * 131_071
    assert longest in main_container(job_plan(argv=["opencode", longest]))["args"]


def test_equal_secrets_have_equal_digests_and_others_do_not() -> None:
    def digest(**variables: str) -> str:
        return str(job_plan(environment=variables).run_secret["metadata"]["annotations"][CONTENT_DIGEST])

    assert digest(A="1", B="2") == digest(B="2", A="1")
    assert len({digest(A="1", B="2"), digest(A="12", B=""), digest(A="1"), digest(A="1", B="3")}) == 4


def test_objects_of_another_attempt_are_not_ours() -> None:
    first, second = create_job_input(), create_job_input(attempt=2)
    labels = job_plan(first).job["metadata"]["labels"]
    assert same_owner(labels, job_plan(first).run_secret["metadata"]["labels"])
    assert belongs_to(Metadata(labels=labels), first.attempt)
    assert not belongs_to(Metadata(labels=labels), second.attempt)
    assert not belongs_to(Metadata(), first.attempt)


@given(st.text(alphabet="$()A{}x ", max_size=20))
def test_kubernetes_passes_arguments_on_unchanged(text: str) -> None:
    assert expanded(literal(text), {"A": "other", "x": "other"}) == text


def expanded(text: str, variables: dict[str, str]) -> str:
    """`$(NAME)` and `$$` as Kubernetes reads them in arguments. Source: core/v1 Container.args."""
    result, at = "", 0
    while at < len(text):
        follows = text[at + 1 : at + 2]
        end = text.find(")", at)
        if text[at] == "$" and follows == "$":
            result, at = result + "$", at + 2
        elif text[at] == "$" and follows == "(" and end > 0:
            name = text[at + 2 : end]
            result, at = result + variables.get(name, f"$({name})"), end + 1
        else:
            result, at = result + text[at], at + 1
    return result


def test_arguments_come_after_the_runners_own() -> None:
    plan = job_plan(create_job_input(config={"graceSec": 7}), argv=["opencode", "run", "--title", "$(HOME)"])
    assert main_container(plan)["command"] == ["sh", "/agent-run/secret/runner.sh"]
    assert main_container(plan)["args"] == [
        *("--stdin", "/tmp/prompt/prompt.txt", "--out", "/agent-run/output", "--dir", "/home/agent", "--grace", "7"),
        *("--logins", "/home/agent/.local/share/opencode", "--logins", "/paperclip/.local/share/opencode"),
        *("--", "opencode", "run", "--title", "$$(HOME)"),
    ]


@pytest.mark.parametrize(
    ("config", "workspace", "session", "directory"),
    [
        pytest.param(None, None, None, "/home/agent", id="default"),
        pytest.param("/paperclip/c", None, None, "/paperclip/c", id="configured"),
        pytest.param("/paperclip/c", "/paperclip/w/", None, "/paperclip/w", id="workspace"),
        pytest.param("/paperclip/c", "/paperclip/w", "/paperclip/s", "/paperclip/s", id="resumed session"),
    ],
)
def test_the_agent_runs_in_the_directory_of_its_session(
    config: str | None, workspace: str | None, session: str | None, directory: str
) -> None:
    plan = job_plan(
        create_job_input(
            config={"cwd": config},
            workspace=Workspace(cwd=workspace),
            session=SessionParams(session_id="ses_1", cwd=session) if session else None,
        )
    )
    args = main_container(plan)["args"]
    assert args[args.index("--dir") + 1] == environment(plan)["PWD"] == directory


def test_a_relative_directory_is_refused_with_its_name() -> None:
    with pytest.raises(InvalidRequest, match=r"cwd: must be an absolute path"):
        job_plan(create_job_input(config={"cwd": "project"}))


def test_reserved_labels_are_not_an_agents_to_set() -> None:
    stolen = {"paperclip.io/agent-id": "x", "app.kubernetes.io/managed-by": "x", "job-name": "x", "team": "Blue Team"}
    plan = job_plan(create_job_input(config={"labels": stolen}))
    labels = plan.job["metadata"]["labels"]
    assert labels["app.kubernetes.io/managed-by"] == "paperclip"
    assert labels["paperclip.io/agent-id"] == create_job_input().attempt.run.agent_id
    assert "job-name" not in labels
    assert labels["team"] == "blueteam"
    assert len([warning for warning in plan.warnings if "reserved" in warning]) == 3
    assert any("team" in warning for warning in plan.warnings)


def test_a_job_runs_one_pod_once() -> None:
    spec = job_plan().job["spec"]
    assert (spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (1, 1, 0)


def test_deadline_and_ttl_of_a_job() -> None:
    spec = job_plan(create_job_input(config={"timeoutSec": 100, "graceSec": 20, "ttlSecondsAfterFinished": 0})).job[
        "spec"
    ]
    assert spec["activeDeadlineSeconds"] == 100 + 20 + 1800
    assert spec["ttlSecondsAfterFinished"] == 60
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] == 30
    unlimited = job_plan(create_job_input(config={"timeoutSec": 0, "retainJobs": True})).job["spec"]
    assert "activeDeadlineSeconds" not in unlimited
    assert "ttlSecondsAfterFinished" not in unlimited


def test_a_pod_runs_without_privileges_and_without_a_token() -> None:
    spec = pod_spec(job_plan())
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in spec["initContainers"] + spec["containers"]:
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["runAsNonRoot"] is True
    spec = pod_spec(job_plan(create_job_input(config={"serviceAccountName": "agent"})))
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("agent", True)


def test_the_group_of_a_shared_volume_is_left_alone() -> None:
    assert "fsGroup" not in pod_spec(job_plan())["securityContext"]
    alone = create_job_input(profile=PodProfile(namespace="agents", image="i"))
    assert pod_spec(job_plan(alone))["securityContext"]["fsGroup"] == 1000
    assert volumes(job_plan(alone))["data"] == {"name": "data", "emptyDir": {}}


def test_the_agent_sees_of_its_secret_only_runner_and_configuration_as_files() -> None:
    plan = job_plan(environment={"TOKEN": "x"})
    secret = volumes(plan)["run-secret"]["secret"]
    assert [item["key"] for item in secret["items"]] == [*SCRIPT_KEYS, "opencode.json"]
    assert mounts(plan)["/agent-run/secret"] == {
        "name": "run-secret",
        "mountPath": "/agent-run/secret",
        "readOnly": True,
    }
    assert "prompt-secret" not in {mount["name"] for mount in main_container(plan)["volumeMounts"]}


def test_what_an_agent_may_only_read_of_the_data_volume_is_mounted_read_only() -> None:
    instance = "/paperclip/instances/default"
    own, skills = f"{instance}/workspaces/{AGENT}", f"{instance}/skills/co-1"
    found = mounts(job_plan(create_job_input(config={"cwd": own})))
    data = {path: mount.get("readOnly", False) for path, mount in found.items() if mount["name"] == "data"}
    assert data == {"/home/agent": False, own: False, skills: True}


def test_every_user_in_the_pod_can_read_the_files_of_the_secrets() -> None:
    secrets = [volume["secret"] for volume in volumes(job_plan()).values() if "secret" in volume]
    assert {secret["defaultMode"] for secret in secrets} == {0o444}


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        pytest.param({"requests": {"cpu": "8"}}, "resources.requests.cpu: 8 is more than the limit 4000m", id="cpu"),
        pytest.param(
            {"requests": {"memory": "2Gi"}, "limits": {"memory": "1G"}},
            "resources.requests.memory: 2Gi is more than the limit 1G",
            id="memory",
        ),
    ],
)
def test_a_request_above_its_limit_is_refused_with_its_name(resources: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        job_plan(create_job_input(config={"resources": resources}))


def test_a_request_may_be_as_large_as_its_limit() -> None:
    equal = {"cpu": "8", "memory": "16Gi", "ephemeral-storage": "2Gi"}
    plan = job_plan(create_job_input(config={"resources": {"requests": equal, "limits": equal}}))
    assert main_container(plan)["resources"] == {"requests": equal, "limits": equal}


def test_a_limit_below_the_default_request_lowers_the_request() -> None:
    plan = job_plan(create_job_input(config={"resources": {"limits": {"memory": "1Gi", "cpu": "500m"}}}))
    assert main_container(plan)["resources"] == {
        "requests": {"cpu": "500m", "memory": "1Gi"},
        "limits": {"cpu": "500m", "memory": "1Gi"},
    }


@pytest.mark.parametrize(
    ("toleration", "message"),
    [
        ({"operator": "Equal", "value": "x"}, "without a key"),
        ({"key": "a", "operator": "Exists", "value": "x"}, "value must be empty"),
        ({"key": "a", "value": "x" * 64}, "not a Kubernetes label value"),
        ({"key": "-", "operator": "Exists"}, "key is not"),
        ({"key": "a", "operator": "Exists", "tolerationSeconds": 1, "effect": "NoSchedule"}, "NoExecute"),
    ],
)
def test_a_toleration_that_kubernetes_refuses_is_refused_with_its_name(
    toleration: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=rf"tolerations\[0\]: .*{message}"):
        job_plan(create_job_input(config={"tolerations": [toleration]}))


def test_reserved_variables_take_precedence_over_the_agents() -> None:
    plan = job_plan(environment={"OPENCODE_DB": "/x", "OPENCODE_CONFIG": "/x", "HOME": "/x", "MINE": "1"})
    variables = environment(plan)
    assert (variables["OPENCODE_DB"], variables["HOME"]) == ("/opencode-db/opencode.db", "/home/agent")
    assert variables["OPENCODE_CONFIG"] == "/agent-run/secret/opencode.json"
    assert variables["MINE"] == {
        "secretKeyRef": {"name": create_job_input().attempt.run_secret_name, "key": "env.MINE"}
    }
    assert "env.HOME" not in plan.run_secret["data"]


def test_inherited_references_come_last_and_never_replace() -> None:
    reference = {"secretKeyRef": {"name": "s", "key": "k"}}
    profile = PodProfile(
        namespace="agents",
        image="i",
        env_references=tuple(EnvReference(name=name, value_from=reference) for name in ("PGUSER", "MINE", "HOME")),
    )
    plan = job_plan(create_job_input(profile=profile), environment={"MINE": "1"})
    assert [each["name"] for each in main_container(plan)["env"]][-1] == "PGUSER"
    assert environment(plan)["MINE"]["secretKeyRef"]["key"] == "env.MINE"


@pytest.mark.parametrize("shell", ["dash", "bash"])
@pytest.mark.parametrize("with_busybox", [True, False])
def test_the_init_container_needs_nothing_but_a_shell(tmp_path: Path, shell: str, with_busybox: bool) -> None:
    for folder in ("prompt", "prompt-secret", "agent-run/bin", "bin"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "prompt-secret/prompt").write_bytes(b"say \xffhello\n")
    (tmp_path / "agent-run/sidecar").mkdir()
    (tmp_path / "agent-run/sidecar/sidecar.pyz").touch()
    for tool in ("cat", "cp", "chmod", "mkdir"):
        (tmp_path / "bin" / tool).symlink_to(f"/bin/{tool}")
    if with_busybox:
        (tmp_path / "bin/busybox").write_text("#!/bin/sh\n")
        (tmp_path / "bin/busybox").chmod(0o755)
    script = INIT_SCRIPT.replace("/tmp/", f"{tmp_path}/").replace("/agent-run", f"{tmp_path}/agent-run")
    script = script.replace("/bin/busybox /usr/bin/busybox", f"{tmp_path}/nothing")
    database = tmp_path / "data" / "database"
    command = [f"/bin/{shell}", "-c", script, "write-prompt", str(database)]
    subprocess.run(command, env={"PATH": f"{tmp_path}/bin"}, check=True)
    assert database.is_dir()
    assert (tmp_path / "prompt/prompt.txt").read_bytes() == b"say \xffhello\n"
    assert (tmp_path / "agent-run/bin/busybox").exists() is with_busybox


def test_a_missing_prompt_fails_the_init_container_in_the_end(tmp_path: Path) -> None:
    (tmp_path / "prompt").mkdir()
    script = INIT_SCRIPT.replace("/tmp/", f"{tmp_path}/").replace("/agent-run", str(tmp_path)).replace("180", "1")
    assert subprocess.run(["/bin/sh", "-c", script, "write-prompt"], capture_output=True).returncode != 0


@pytest.mark.parametrize("file", ["prompt-secret/prompt", "sidecar/sidecar.pyz"])
def test_a_secret_that_comes_late_is_waited_for(tmp_path: Path, file: str) -> None:
    for folder in ("prompt", "prompt-secret", "sidecar"):
        (tmp_path / folder).mkdir()
    for earlier in {"prompt-secret/prompt", "sidecar/sidecar.pyz"} - {file}:
        (tmp_path / earlier).write_text("hello\n")
    script = INIT_SCRIPT.replace("/tmp/", f"{tmp_path}/").replace("/agent-run", str(tmp_path))
    late = script.replace("sleep 1", f"echo hello > {tmp_path}/{file}")
    assert subprocess.run(["/bin/sh", "-c", late, "write-prompt"], capture_output=True).returncode == 0
    assert (tmp_path / "prompt/prompt.txt").read_text() == "hello\n"


def test_a_kubelet_that_comes_back_can_end_a_pod_whose_secrets_are_deleted() -> None:
    pod = job_plan(create_job_input()).job["spec"]["template"]["spec"]
    secrets = {volume["name"]: volume["secret"]["optional"] for volume in pod["volumes"] if "secret" in volume}
    assert secrets == {"prompt-secret": True, "run-secret": True, "sidecar": True}


def test_no_agent_starts_with_a_folder_that_cannot_be_created_or_that_leads_elsewhere(tmp_path: Path) -> None:
    for folder in ("prompt", "prompt-secret", "data/secrets"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "prompt-secret/prompt").write_text("hello")
    (tmp_path / "data/workspace").symlink_to("secrets")
    script = INIT_SCRIPT.replace("/tmp/", f"{tmp_path}/").replace("/agent-run", str(tmp_path))
    for folder in ("/dev/null/no", f"{tmp_path}/data/workspace", f"{tmp_path}/data/workspace/below"):
        ended = subprocess.run(["/bin/sh", "-c", script, "write-prompt", folder], capture_output=True, text=True)
        assert (ended.returncode, ended.stderr.splitlines()[-1].split(":")[0]) == (1, folder)
        assert not (tmp_path / "prompt/prompt.txt").exists()


PROXY = ApiProxy(
    upstream="http://paperclip:3100", run_id="run-1", token="canary-of-the-token", path_variables=("TOOLS_URL",)
)


def containers(plan: JobPlan) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pod_spec(plan)["containers"]
    return found


def mounted(container: dict[str, Any]) -> set[str]:
    return {mount["name"] for mount in container["volumeMounts"]}


def test_only_the_sidecar_has_the_token() -> None:
    plan = job_plan(proxy=PROXY, environment={"SSL_CERT_FILE": "/ca.pem", "OTHER": "x"})
    sidecar, main = containers(plan)
    assert (sidecar["name"], main["name"]) == ("sidecar", "opencode")
    assert "canary" not in json.dumps(plan.job)
    content = {key: base64.b64decode(value) for key, value in plan.run_secret["data"].items()}
    assert {key: content[key] for key in ("token", "run-id")} == {"token": b"canary-of-the-token", "run-id": b"run-1"}
    holding = {
        name
        for name, volume in volumes(plan).items()
        if {"token", "tools-token"} & {item["key"] for item in volume.get("secret", {}).get("items", [])}
    }
    assert holding == {"token"}
    assert all("items" in volume["secret"] for volume in volumes(plan).values() if "secret" in volume)
    assert holding <= mounted(sidecar)
    assert not holding & mounted(main)
    assert {each["name"] for each in sidecar["env"]} == {"PAPERCLIP_UPSTREAM_URL", "SSL_CERT_FILE"}
    assert not any(
        each["valueFrom"]["secretKeyRef"]["key"] in TOKEN_KEYS for each in main["env"] if "valueFrom" in each
    )
    shown = repr(plan)
    assert not any(value in shown for value in plan.run_secret["data"].values())
    assert "canary-of-the-token" not in repr(PROXY)


def test_agent_and_sidecar_share_the_output_only() -> None:
    sidecar, main = containers(job_plan(proxy=PROXY))
    assert mounted(sidecar) & mounted(main) == {"output"}
    variable = main["args"].index("--api-variable")
    assert main["args"][variable + 1] == "TOOLS_URL"
    assert variable < main["args"].index("--")


def test_every_pod_has_a_sidecar_that_waits_for_its_reader() -> None:
    sidecar, main = containers(job_plan(create_job_input(config={"maxUnreadSec": 77})))
    assert sidecar["args"][-1] == "77"
    assert "token" not in mounted(sidecar)
    assert sidecar["env"] == []
    assert "--api-variable" not in main["args"]


def test_the_sidecar_is_confined_like_the_agent_and_changes_nothing_on_disk() -> None:
    sidecar, main = containers(job_plan(proxy=PROXY))
    assert sidecar["securityContext"] == {**main["securityContext"], "readOnlyRootFilesystem": True}
    assert sidecar["resources"]["limits"]["memory"] == "128Mi"


@pytest.mark.parametrize("trust", [{}, {"SSL_CERT_FILE": "/ca/tls.pem"}, {"NODE_EXTRA_CA_CERTS": "/ca/tls.pem"}])
def test_the_sidecar_has_the_inherited_secrets_only_where_they_may_hold_its_certificates(
    trust: dict[str, str],
) -> None:
    mount = SecretMount(volume_name="ca", mount_path="/ca", secret_name="ca")
    profile = PodProfile(namespace="agents", image="registry.example/agent:1", secret_mounts=(mount,))
    sidecar, main = containers(job_plan(create_job_input(profile=profile), proxy=PROXY, environment=trust))
    assert "/ca" in {each["mountPath"] for each in main["volumeMounts"]}
    assert ("/ca" in {each["mountPath"] for each in sidecar["volumeMounts"]}) == bool(trust)


def test_kubectl_logs_shows_the_agents_output_by_default() -> None:
    template = job_plan().job["spec"]["template"]["metadata"]
    assert template["annotations"] == {"kubectl.kubernetes.io/default-container": "sidecar"}


@pytest.mark.parametrize(
    ("mode", "data_claim", "task_key", "kept"),
    [
        ("workspace_subpath", "data", "task-1", True),
        ("workspace_subpath", "data", None, False),
        ("workspace_subpath", None, "task-1", False),
        ("dedicated_pvc", None, None, True),
        ("ephemeral", "data", "task-1", False),
    ],
)
def test_sessions_are_kept_exactly_where_the_database_outlives_the_pod(
    mode: str, data_claim: str | None, task_key: str | None, kept: bool
) -> None:
    profile = PodProfile(namespace="agents", image="registry.example/agent:1", data_claim=data_claim)
    input = create_job_input(config={"agentDbMode": mode}, profile=profile, task_key=task_key)
    assert keeps_sessions(input) is kept
    temporary = [name for name, volume in volumes(job_plan(input)).items() if "emptyDir" in volume]
    assert any("db" in name for name in temporary) is not kept


@pytest.mark.parametrize(
    ("key", "reserved"),
    [
        *((key, True) for key in ("job-name", "controller-uid", "app.kubernetes.io/name", "paperclip.io/run-id")),
        *((key, True) for key in ("kubernetes.io/x", "k8s.io/x", "node.kubernetes.io/x", "apps.k8s.io/x")),
        *((key, False) for key in ("team", "example.com/job-name", "mykubernetes.io/x", "paperclip.io")),
    ],
)
def test_labels_that_this_program_or_kubernetes_relies_on_are_left_out_with_a_warning(key: str, reserved: bool) -> None:
    plan = job_plan(create_job_input(config={"labels": {key: "mine"}}))
    assert (plan.job["metadata"]["labels"].get(key) == "mine") is not reserved
    assert any(key in warning for warning in plan.warnings) is reserved


def test_a_served_agent_has_the_script_and_only_its_sidecar_has_the_turn() -> None:
    server = Driven(b"serve", {"model": "fake/text", "session": None})
    plan = job_plan(driven=server)
    content = {key: base64.b64decode(value) for key, value in plan.run_secret["data"].items()}
    assert content["serve.sh"] == b"serve"
    assert json.loads(content["turn.json"]) == {
        "prompt": "/tmp/prompt/prompt.txt",
        "directory": "/home/agent",
        "model": "fake/text",
        "session": None,
    }
    sidecar, main = containers(plan)
    arguments = main["args"]
    assert arguments[arguments.index("--serve") + 1] == "/agent-run/secret/serve.sh"
    assert sidecar["args"][-1] == "/agent-run/sidecar/turn.json"
    assert {"name": "prompt", "mountPath": "/tmp/prompt", "readOnly": True} in sidecar["volumeMounts"]
    files = {
        name: [item["key"] for item in volumes(plan)[name]["secret"]["items"]] for name in ("run-secret", "sidecar")
    }
    assert files == {
        "run-secret": [*SCRIPT_KEYS, "opencode.json", "serve.sh"],
        "sidecar": ["sidecar.pyz", "turn.json"],
    }
