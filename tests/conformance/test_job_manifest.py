"""Behaviours of the Job manifest that the existing adapters' tests pin. One row, one id; deviations in docs/."""

import re
from typing import Any

import pytest

from agent_runs.agents.opencode.switches import switched_variables
from agent_runs.contracts.identity import AttemptKey, RunKey, label_value
from agent_runs.contracts.messages import EnvReference, PodProfile, SecretMount
from agent_runs.contracts.request import SessionParams
from agent_runs.job.data_volume import database_path
from agent_runs.job.volumes import claim_name, database_claim
from tests.job.inputs import create_job_input, environment, job_plan, main_container, mounts, pod_spec, volumes


def name_of(agent: str, run: str) -> str:
    return AttemptKey(run=RunKey(agent_id=agent, company_id="c", run_id=run)).job_name


@pytest.mark.parametrize(
    ("agent", "run"),
    [pytest.param("agent-1", "run-1", id="J1 plain"), pytest.param("A_B:C-", "---", id="J1 odd")],
)
def test_j1_job_names(agent: str, run: str) -> None:
    name = name_of(agent, run)
    assert re.fullmatch(r"agent-opencode-.*-[0-9a-f]{6}", name)
    assert name == name_of(agent, run)
    assert name != name_of(agent, f"{run}x")


def test_j2_the_agents_image_replaces_the_workers() -> None:
    assert main_container(job_plan())["image"] == "registry.example/agent:1"
    assert main_container(job_plan(create_job_input(config={"image": "other:2"})))["image"] == "other:2"


def test_j4_user_and_group_without_a_volume_wide_change() -> None:
    security = pod_spec(job_plan())["securityContext"]
    assert (security["runAsUser"], security["runAsGroup"], security["runAsNonRoot"]) == (1000, 1000, True)
    assert "fsGroup" not in security


def test_j5_labels_on_job_and_pods() -> None:
    plan = job_plan()
    labels = plan.job["metadata"]["labels"]
    key = create_job_input().attempt.run
    assert labels == plan.job["spec"]["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/managed-by"] == "paperclip"
    assert labels["app.kubernetes.io/component"] == "agent-job"
    assert labels["paperclip.io/adapter-type"] == "opencode_k8s"
    assert (labels["paperclip.io/agent-id"], labels["paperclip.io/run-id"]) == (key.agent_id, key.run_id)
    assert plan.job["metadata"]["annotations"] == {
        "paperclip.io/adapter-type": "opencode_k8s",
        "paperclip.io/agent-name": "Ada",
    }


@pytest.mark.parametrize(("task", "label"), [("TASK/1", "task1"), (None, None)], ids=["J6", "J6 absent"])
def test_j6_task_label(task: str | None, label: str | None) -> None:
    assert job_plan(create_job_input(task_id=task)).job["metadata"]["labels"].get("paperclip.io/task-id") == label


def test_j7_session_label() -> None:
    resumed = job_plan(create_job_input(session=SessionParams(session_id="ses_abc")))
    assert resumed.job["metadata"]["labels"]["paperclip.io/session-id"] == "ses_abc"
    assert "paperclip.io/session-id" not in job_plan().job["metadata"]["labels"]


def test_j8_one_init_container() -> None:
    (init,) = pod_spec(job_plan())["initContainers"]
    assert (init["name"], init["image"]) == ("write-prompt", "busybox:1.36")


def test_j9_fixed_environment() -> None:
    assert environment(job_plan())["HOME"] == "/home/agent"
    assert switched_variables()["OPENCODE_DISABLE_PROJECT_CONFIG"] == "1"  # `attempt_plan` adds these


def test_j10_a_job_runs_once_and_goes_by_itself() -> None:
    spec = job_plan().job["spec"]
    assert (spec["ttlSecondsAfterFinished"], spec["backoffLimit"]) == (300, 0)
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize(
    "written",
    [
        pytest.param("a=1\n# comment\n\nb=2", id="J11 lines"),
        pytest.param('{"a": "1", "b": "2"}', id="J11 JSON"),
        pytest.param({"a": "1", "b": "2"}, id="J11 object"),
    ],
)
def test_j11_node_selector(written: object) -> None:
    assert pod_spec(job_plan(create_job_input(config={"nodeSelector": written})))["nodeSelector"] == {
        "a": "1",
        "b": "2",
    }


def test_j12_references_and_env_from_are_handed_on() -> None:
    reference = {"secretKeyRef": {"name": "db", "key": "user"}}
    profile = PodProfile(
        namespace="agents",
        image="i",
        env_references=(EnvReference(name="PGUSER", value_from=reference),),
        env_from=({"secretRef": {"name": "all"}},),
    )
    plan = job_plan(create_job_input(profile=profile))
    assert environment(plan)["PGUSER"] == reference
    assert main_container(plan)["envFrom"] == [{"secretRef": {"name": "all"}}]
    assert environment(job_plan(create_job_input(profile=profile), environment={"PGUSER": "me"}))["PGUSER"] != reference
    assert "envFrom" not in main_container(job_plan())


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("clean-1.2_3", "clean-1.2_3"),
        ("UPPER", "upper"),
        ("agent/id:test@v1", "agentidtestv1"),
        ("x" * 70, "x" * 63),
        ("ses_abc", "ses_abc"),
        ("-abc-", "abc"),
        ("___", ""),
    ],
    ids=["J17 clean", "J17 case", "J13 J17 strip", "J17 cap", "J13", "deviation: trimmed", "deviation: empty"],
)
def test_j13_j17_label_values(text: str, label: str) -> None:
    assert label_value(text) == label


def test_j14_j15_database_of_its_own() -> None:
    plan = job_plan(create_job_input(config={"agentDbMode": "dedicated_pvc", "agentDbStorageClass": "fast"}))
    assert environment(plan)["OPENCODE_DB"] == "/opencode-db/opencode.db"
    assert mounts(plan)["/opencode-db"] == {"name": "opencode-db", "mountPath": "/opencode-db"}
    claim = claim_name(create_job_input().attempt.run.agent_id)
    assert volumes(plan)["opencode-db"]["persistentVolumeClaim"] == {"claimName": claim}
    replaced = job_plan(environment={"OPENCODE_DB": "/mine"})
    assert [each["value"] for each in main_container(replaced)["env"] if each["name"] == "OPENCODE_DB"] == [
        "/opencode-db/opencode.db"
    ]


@pytest.mark.parametrize("mode", ["ephemeral", "workspace_subpath"], ids=["J15 ephemeral", "J15 no task"])
def test_j15_database_that_goes_with_the_pod(mode: str) -> None:
    assert volumes(job_plan(create_job_input(config={"agentDbMode": mode})))["opencode-db"]["emptyDir"] == {}


@pytest.mark.parametrize("mode", ["ephemeral", "dedicated_pvc"])
def test_j16_the_init_container_knows_no_database(mode: str) -> None:
    plan = job_plan(create_job_input(config={"agentDbMode": mode}, task_key="t"))
    (init,) = pod_spec(plan)["initContainers"]
    assert ".opencode-db" not in " ".join(init["command"])
    assert "env" not in init
    assert {mount["name"] for mount in init["volumeMounts"]} == {"prompt", "prompt-secret", "sidecar", "runner", "data"}


def test_j16_deviation_a_folder_on_the_data_volume_is_made_by_the_agents_own_user() -> None:
    plan = job_plan(create_job_input(task_key="t"))
    (init,) = pod_spec(plan)["initContainers"]
    assert f"/paperclip/{mounts(plan)['/opencode-db']['subPath']}" in init["command"]
    assert init["securityContext"]["runAsUser"] == 1000
    assert {"name": "data", "mountPath": "/paperclip"} in init["volumeMounts"]


def test_j19_volumes() -> None:
    profile = PodProfile(
        namespace="agents",
        image="i",
        data_claim="paperclip-data",
        secret_mounts=(SecretMount(volume_name="ssh", secret_name="keys", mount_path="/etc/ssh", default_mode=0o400),),
    )
    plan = job_plan(create_job_input(profile=profile))
    assert volumes(plan)["prompt-secret"]["secret"]["secretName"] == create_job_input().attempt.prompt_secret_name
    assert volumes(plan)["data"]["persistentVolumeClaim"] == {"claimName": "paperclip-data"}
    assert "/paperclip" not in mounts(plan)
    assert mounts(plan)["/home/agent"]["name"] == "data"
    assert volumes(plan)["ssh"]["secret"] == {"secretName": "keys", "optional": True, "defaultMode": 0o400}
    assert mounts(plan)["/etc/ssh"] == {"name": "ssh", "mountPath": "/etc/ssh", "readOnly": True}


def test_j27_node_env() -> None:
    assert environment(job_plan())["NODE_ENV"] == "development"
    assert environment(job_plan(environment={"NODE_ENV": "production"}))["NODE_ENV"] != "development"
    reference = EnvReference(name="NODE_ENV", value_from={"configMapKeyRef": {"name": "c", "key": "k"}})
    profile = PodProfile(namespace="agents", image="i", env_references=(reference,))
    assert environment(job_plan(create_job_input(profile=profile)))["NODE_ENV"] == reference.value_from


@pytest.mark.parametrize("name", ["GOCACHE", "npm_config_cache", "XDG_CACHE_HOME", "XDG_DATA_HOME", "PIP_CACHE_DIR"])
def test_j28_caches_are_reserved(name: str) -> None:
    assert environment(job_plan(environment={name: "/elsewhere"}))[name].startswith("/runtime-cache/")


@pytest.mark.parametrize(
    ("config", "selector", "tolerations"),
    [
        pytest.param({}, {"disk": "ssd"}, [{"key": "gpu", "operator": "Exists"}], id="J29 inherited"),
        pytest.param({"nodeSelector": {}, "tolerations": []}, None, None, id="J29 opted out"),
        pytest.param({"nodeSelector": "", "tolerations": "[]"}, None, None, id="J29 opted out by text"),
        pytest.param(
            {"nodeSelector": {"a": "b"}, "tolerations": '[{"key": "x", "operator": "Exists"}]'},
            {"a": "b"},
            [{"key": "x", "operator": "Exists"}],
            id="J29 own",
        ),
    ],
)
def test_j29_placement(config: dict[str, Any], selector: object, tolerations: object) -> None:
    profile = PodProfile(
        namespace="agents",
        image="i",
        node_selector={"disk": "ssd"},
        tolerations=(
            {"key": "gpu", "operator": "Exists"},
            {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "tolerationSeconds": 300},
        ),
    )
    spec = pod_spec(job_plan(create_job_input(profile=profile, config=config)))
    assert (spec.get("nodeSelector"), spec.get("tolerations")) == (selector, tolerations)


def test_j30_database_on_the_data_volume() -> None:
    plan = job_plan(create_job_input(task_key="BLO-11715"))
    agent = create_job_input().attempt.run.agent_id
    assert mounts(plan)["/opencode-db"] == {
        "name": "data",
        "mountPath": "/opencode-db",
        "subPath": f".opencode-db/co-1/{agent}/blo-11715-3ba77edf2383ff9a",
    }
    assert "opencode-db" not in volumes(plan)
    alone = job_plan(create_job_input(task_key="t", profile=PodProfile(namespace="agents", image="i")))
    assert volumes(alone)["opencode-db"]["emptyDir"] == {}  # the peers refuse; see docs/deviations.md


def test_j33_caches_have_a_volume() -> None:
    plan = job_plan()
    assert volumes(plan)["runtime-cache"]["emptyDir"] == {"sizeLimit": "20Gi"}
    assert mounts(plan)["/runtime-cache"]["name"] == "runtime-cache"


@pytest.mark.parametrize(
    ("company", "agent", "task", "path"),
    [
        pytest.param("co-1", "agent-1", "7d6733a4-a207", ".opencode-db/co-1/agent-1/7d6733a4-a207", id="P1 UUID"),
        pytest.param("co-1", "agent-1", "__heartbeat__", ".opencode-db/co-1/agent-1/__heartbeat__", id="P2 heartbeat"),
        pytest.param("co-1", "agent-1", "x" * 128, f".opencode-db/co-1/agent-1/{'x' * 128}", id="P5 cap"),
    ],
)
def test_p1_p6_database_paths(company: str, agent: str, task: str, path: str) -> None:
    assert database_path(company, agent, task) == path


@pytest.mark.parametrize(
    ("task", "folder"),
    [
        pytest.param("../../etc/passwd", r"______etc_passwd-[0-9a-f]{16}", id="P3 traversal"),
        pytest.param("BLO-11715", r"blo-11715-[0-9a-f]{16}", id="P6 capitals"),
        pytest.param("..", r"__-[0-9a-f]{16}", id="P8"),
        pytest.param("x" * 200, r"x{111}-[0-9a-f]{16}", id="P5 cap"),
    ],
)
def test_p3_p8_other_names_get_a_digest(task: str, folder: str) -> None:
    assert re.fullmatch(folder, database_path("co-1", "agent-1", task).split("/")[-1])
    assert re.fullmatch(folder, database_path(task, "agent-1", "t").split("/")[1])
    assert len(database_path("co-1", "agent-1", task).split("/")) == 4


def test_e82_e83_e86_the_claim_of_an_agent() -> None:
    claim = database_claim(
        create_job_input(agent="Agent_1", config={"agentDbMode": "dedicated_pvc", "agentDbStorageClass": "fast"})
    )
    assert claim is not None
    assert re.fullmatch("opencode-db-agent1-[0-9a-f]{16}", claim["metadata"]["name"])  # of no other agent
    assert claim_name("agent-1") == "opencode-db-agent-1"
    assert claim["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "fast",
    }
    assert claim["metadata"]["labels"]["paperclip.io/pvc-type"] == "agent-db"


@pytest.mark.parametrize("mode", ["ephemeral", "workspace_subpath"], ids=["E80", "E85"])
def test_e80_e85_no_claim_unless_asked_for(mode: str) -> None:
    assert database_claim(create_job_input(config={"agentDbMode": mode})) is None
