"""The worker knows the settings in deploy/, and deploy/ grants the permissions that the worker needs."""

import re
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
import yaml

import worker
from agent_runs.cli import keys
from agent_runs.client.settings import SettingsError
from agent_runs.contracts.pod import DATA_DIRECTORY
from agent_runs.doctor.permissions import CHECK_VERBS, DEPLOYMENT_VERBS, REQUIRED_VERBS
from agent_runs.job.pod_profile import inherited_literals, pod_profile
from agent_runs.kube.ownership import OURS, selector
from agent_runs.service.health import CHECK_TIMEOUT
from agent_runs.service.polling import SilenceLimits
from agent_runs.service.settings import WorkerSettings
from agent_runs.web.server import DRAIN_TIMEOUT
from tests.support.cases import case
from tests.support.overlays import OVERLAYS, PRODUCTION, TRIAL, built, objects

DEPLOY = Path(__file__).parents[1] / "deploy"
PAGE = (DEPLOY.parent / "docs" / "install.md").read_text()
AGENTS_NAMESPACE = DEPLOY / "overlays" / "production" / "namespace.yaml"
MANIFEST = (DEPLOY / "base" / "worker.yaml").read_text()
POD: dict[str, Any] = yaml.safe_load(MANIFEST)["spec"]["template"]["spec"]
CONTAINER: dict[str, Any] = POD["containers"][0]


def variables_of(overlay: str) -> dict[str, str]:
    """The literal variables of the worker's container: those of its manifest and of the overlay's settings.env."""
    [settings] = [each for (_, name), each in objects(overlay, "ConfigMap").items() if "agent-runs-settings" in name]
    [deployment] = objects(overlay, "Deployment").values()
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    namespace = deployment["metadata"]["namespace"]
    literals: dict[str, str] = {
        each["name"]: each["value"].replace("$(POD_NAMESPACE)", namespace)
        for each in container["env"]
        if "value" in each
    }
    return {**settings["data"], **literals}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_variable_of_the_deployment_is_a_setting_with_a_usable_value(overlay: str) -> None:
    assert len(variables_of(overlay)) >= 12
    settings_of(overlay)


def settings_of(overlay: str) -> WorkerSettings:
    """Without the files of TLS, which are read with the settings; tests/client/test_temporal_server.py has some."""
    variables = variables_of(overlay)
    return WorkerSettings.read({name: value for name, value in variables.items() if "_TLS_" not in name})


def test_the_trial_never_has_two_workers_at_its_file_and_production_never_none() -> None:
    [trial], [production] = (list(objects(overlay, "Deployment").values()) for overlay in (TRIAL, PRODUCTION))
    assert (trial["spec"]["replicas"], trial["spec"]["strategy"]["type"]) == (1, "Recreate")
    assert (production["spec"]["replicas"], production["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"]) == (2, 0)
    assert len(objects(PRODUCTION, "PodDisruptionBudget")) == 1
    assert "AGENT_RUNS_TRANSCRIPTS_URL" not in variables_of(PRODUCTION)  # a Secret has it, for it has a password


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_worker_mounts_the_keys_that_agent_runs_makes_and_no_service_gives_it_variables(overlay: str) -> None:
    [deployment] = objects(overlay, "Deployment").values()
    pod = deployment["spec"]["template"]["spec"]
    assert pod["enableServiceLinks"] is False
    secrets = {volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
    assert keys.SECRET in secrets
    variables = variables_of(overlay)
    assert variables["AGENT_RUNS_SEALING_KEY_FILE"] == f"/etc/agent-runs/{keys.SEALING}"
    assert variables["AGENT_RUNS_TRANSCRIPTS_KEY_FILE"] == f"/etc/agent-runs/{keys.SIGNING}"
    assert variables["AGENT_RUNS_WORKSPACE_KEY_FILE"] == f"/etc/agent-runs/{keys.WORKSPACES}"


def test_the_trial_shares_no_volume_and_keeps_workspaces_on_a_claim_of_the_workers_that_it_does_not_delete() -> None:
    [deployment] = objects(TRIAL, "Deployment").values()
    pod = deployment["spec"]["template"]["spec"]
    mounts = {each["mountPath"]: each["name"] for each in pod["containers"][0]["volumeMounts"]}
    assert DATA_DIRECTORY not in mounts
    folder = urlsplit(variables_of(TRIAL)["AGENT_RUNS_WORKSPACE_STORE"]).path
    claims = {each["name"]: each["persistentVolumeClaim"] for each in pod["volumes"] if "persistentVolumeClaim" in each}
    name = claims[mounts[folder]]["claimName"]
    file = DEPLOY / "components" / "workspace-folder" / "workspaces.yaml"
    assert yaml.safe_load(file.read_text())["metadata"]["name"] == name
    assert f"-f {file.relative_to(DEPLOY.parent)}" in PAGE


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_reach_workspaces_through_the_service_and_the_port_at_which_the_worker_serves_them(overlay: str) -> None:
    variables = variables_of(overlay)
    url, (_, _, listened) = (
        urlsplit(variables["AGENT_RUNS_WORKSPACE_URL"]),
        variables["AGENT_RUNS_WORKSPACE_LISTEN"].rpartition(":"),
    )
    [((namespace, name), service)] = objects(overlay, "Service").items()
    assert url.hostname == f"{name}.{namespace}"
    [target] = [each["targetPort"] for each in service["spec"]["ports"] if each["port"] == url.port]
    [port] = [each["containerPort"] for each in CONTAINER["ports"] if each["name"] == target]
    assert port == int(listened)


def test_production_with_object_storage_shares_no_volume(tmp_path: Path) -> None:
    """By the two changes that its settings.env names."""
    storage = {"# AGENT_RUNS_WORKSPACE_STORE=s3://BUCKET/PREFIX": "AGENT_RUNS_WORKSPACE_STORE=s3://acme/workspaces"}
    volume = {"  - ../../../components/data-volume\n": ""}
    changes = {"worker/settings.env": storage, "worker/kustomization.yaml": volume}
    documents = edited(tmp_path, PRODUCTION, changes)
    assert "persistentVolumeClaim" not in str([each for each in documents if each["kind"] == "Deployment"])
    settings: dict[str, str] = {}
    for each in documents:
        settings |= each["data"] if each["kind"] == "ConfigMap" else {}
    assert settings["AGENT_RUNS_WORKSPACE_STORE"] == "s3://acme/workspaces"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_agents_inherit_the_keys_of_providers_and_not_the_credentials_of_the_workspace_store(overlay: str) -> None:
    """Some of these have the same names."""
    [deployment] = objects(overlay, "Deployment").values()
    template = deployment["spec"]["template"]
    [container] = template["spec"]["containers"]
    sources = [each["secretRef"]["name"] for each in container["envFrom"] if "secretRef" in each]
    assert sources[-1] == "agent-runs-workspace-storage"  # of two values of one name the last one counts
    pod = {"metadata": {"name": "worker"}, **template}
    profile = pod_profile(pod, worker.inheritance_of(settings_of(overlay)))
    assert [each["secretRef"]["name"] for each in profile.env_from] == ["agent-runs-provider-keys"]
    assert profile.env_references == ()
    assert inherited_literals(pod, worker.inheritance_of(settings_of(overlay))) == {}


def test_every_package_of_the_wheel_is_in_the_worker_image() -> None:
    wheel = (DEPLOY.parent / "pyproject.toml").read_text()
    shipped = re.search(r"only-include = \[(.*)\]", wheel)
    assert shipped
    packages = [name for name in re.findall(r'"([\w.]+)"', shipped[1]) if name != "worker.py"]
    dockerfile = (DEPLOY / "worker.Dockerfile").read_text()
    assert "workflows" in packages
    assert [package for package in packages if f"COPY {package} {package}" not in dockerfile] == []


def test_the_image_installs_only_files_whose_hash_is_known_in_the_versions_that_are_tested() -> None:
    root = DEPLOY.parent
    pinned = re.findall(r"^(\S+==\S+)", (root / "requirements.lock").read_text(), re.MULTILINE)
    requirements = re.split(r"\n(?=\S)", (root / "requirements-worker.lock").read_text().strip())
    assert len(requirements) >= 40
    assert [each for each in requirements if "--hash=sha256:" not in each or each.split()[0] not in pinned] == []
    assert (
        "pip install --no-compile --require-hashes -r requirements-worker.lock"
        in (DEPLOY / "worker.Dockerfile").read_text()
    )


def test_a_rolling_update_leaves_time_for_the_graceful_shutdown() -> None:
    before = timedelta(seconds=int(CONTAINER["lifecycle"]["preStop"]["exec"]["command"][-1]))
    needed = before + worker.GRACEFUL_SHUTDOWN_TIMEOUT + DRAIN_TIMEOUT
    assert timedelta(seconds=POD["terminationGracePeriodSeconds"]) >= needed + timedelta(seconds=10)


def test_probes_use_the_health_port_and_wait_longer_than_a_check() -> None:
    listens = {env["name"]: env["value"] for env in CONTAINER["env"] if env["name"].endswith("_LISTEN")}
    port = next(port["containerPort"] for port in CONTAINER["ports"] if port["name"] == "health")
    assert listens["AGENT_RUNS_HEALTH_LISTEN"].endswith(f":{port}")
    for probe, path in (("startupProbe", "/livez"), ("readinessProbe", "/readyz"), ("livenessProbe", "/livez")):
        assert CONTAINER[probe]["httpGet"] == {"path": path, "port": "health"}
        assert timedelta(seconds=CONTAINER[probe]["timeoutSeconds"]) > CHECK_TIMEOUT
    assert SilenceLimits().live > SilenceLimits().ready


def granted(overlay: str, role: tuple[str, str]) -> dict[str, set[str]]:
    """The verbs of a Role by resource."""
    return {
        f"{resource}.{group}" if group else resource: set(rule["verbs"])
        for rule in objects(overlay, "Role")[role]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


@pytest.mark.parametrize(("overlay", "agents"), [(TRIAL, "paperclip"), (PRODUCTION, "paperclip-agents")], ids=OVERLAYS)
def test_the_worker_is_granted_what_it_checks_where_the_agents_are_and_only_its_own_pod_elsewhere(
    overlay: str, agents: str
) -> None:
    worker_role, own_pod = (agents, "agent-runs-worker"), ("paperclip", "agent-runs-own-pod")
    checked = {resource: {*verbs, *CHECK_VERBS.get(resource, ())} for resource, verbs in REQUIRED_VERBS.items()}
    assert granted(overlay, worker_role) == checked
    assert granted(overlay, own_pod) == {"pods": {"get"}}
    assert set(objects(overlay, "Role")) == set(objects(overlay, "RoleBinding")) == {worker_role, own_pod}
    account = {"kind": "ServiceAccount", "name": "agent-runs-worker", "namespace": "paperclip"}
    assert all(binding["subjects"] == [account] for binding in objects(overlay, "RoleBinding").values())
    assert variables_of(overlay).get("AGENT_RUNS_NAMESPACE", "paperclip") == agents


def test_the_namespace_of_agents_admits_restricted_pods_only() -> None:
    assert f"kubectl apply -f {AGENTS_NAMESPACE.relative_to(DEPLOY.parent)}" in PAGE
    namespace = yaml.safe_load(AGENTS_NAMESPACE.read_text())
    assert namespace["metadata"]["name"] == "paperclip-agents"
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


WITH_DATA = {"Namespace", "PersistentVolumeClaim", "PersistentVolume", "StatefulSet"}


def test_nothing_with_data_is_in_what_an_overlay_deletes(tmp_path: Path) -> None:
    sets = {overlay: list(yaml.safe_load_all(built(overlay))) for overlay in OVERLAYS}
    for component in sorted((DEPLOY / "components").iterdir()):
        if component.name not in {
            "workspace-folder",
            "sqlite",
            "postgresql",
            "temporal-tls",
        }:  # the overlays have these
            sets[component.name] = with_component(tmp_path / component.name, component.name, validated=False)
    for name, documents in sets.items():
        with case(name):
            assert documents
            assert {each["kind"] for each in documents} & WITH_DATA == set()


def test_uninstalling_ends_agents_first_then_workers_and_leaves_nothing_but_data() -> None:
    uninstall = PAGE.partition("## Uninstall")[2]
    commands = "\n".join(re.findall(r"```sh\n(.*?)```", uninstall, re.DOTALL))
    steps = (
        "agent-runs cancel",
        "delete deployment agent-runs-worker --cascade=foreground",
        "delete jobs",
        "delete -k",
    )
    places = [commands.find(step) for step in steps]
    assert places == sorted(places)
    assert -1 not in places
    assert commands.count(f"--selector {selector(OURS)}\n") == 2
    sources = [PAGE, *(file.read_text() for file in DEPLOY.glob("components/*/kustomization.yaml"))]
    made = {name for text in sources for name in re.findall(r"create secret generic (\S+)", text)}
    assert [name for name in {keys.SECRET, *made} if name not in commands] == []
    assert re.findall(r"delete (?:namespace|pvc|persistentvolume)", commands) == []
    for overlay in OVERLAYS:
        for name, each in objects(overlay, "ConfigMap").items():
            with case(overlay, name):  # each change of the settings leaves one of another name behind
                assert "--selector app.kubernetes.io/part-of=agent-runs" in commands
                assert each["metadata"]["labels"] == {"app.kubernetes.io/part-of": "agent-runs"}


def test_the_component_for_storage_classes_grants_to_read_one_by_name_and_nothing_else(tmp_path: Path) -> None:
    documents = with_component(tmp_path, "storage-classes")
    found = {each["kind"]: each for each in documents}
    assert found["ClusterRole"]["rules"] == [
        {"apiGroups": ["storage.k8s.io"], "resources": ["storageclasses"], "verbs": ["get"]}
    ]
    [subject] = found["ClusterRoleBinding"]["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "agent-runs-worker", "namespace": "paperclip"}


def test_the_component_for_operators_mounts_the_secret_at_the_file_of_the_setting(tmp_path: Path) -> None:
    found = {(each["kind"], each["metadata"]["name"]): each for each in with_component(tmp_path, "operator-token")}
    pod = found["Deployment", "agent-runs-worker"]["spec"]["template"]["spec"]
    [file] = [each["value"] for each in pod["containers"][0]["env"] if each["name"] == "AGENT_RUNS_OPERATOR_TOKEN_FILE"]
    mounts = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
    [volume] = [each for each in pod["volumes"] if each["name"] == "operator-token"]
    assert (volume["secret"]["secretName"], mounts["operator-token"]) == (
        "agent-runs-operator-token",
        str(Path(file).parent),
    )
    comment = (DEPLOY / "components" / "operator-token" / "kustomization.yaml").read_text()
    assert f"create secret generic {volume['secret']['secretName']} --from-literal={Path(file).name}=" in comment


def with_component(folder: Path, component: str, *, validated: bool = True) -> list[dict[str, Any]]:
    """What the trial creates with one component more."""
    added = {"components:\n": f"components:\n  - ../../components/{component}\n"}
    documents = edited(folder, TRIAL, {"kustomization.yaml": added})
    for each in documents if validated else ():
        kubernetes_validate.validate(each, "1.29", strict=True)
    return documents


def edited(folder: Path, overlay: str, changes: dict[str, dict[str, str]]) -> list[dict[str, Any]]:
    """What a copy of an overlay creates in which texts of some files are replaced by others."""
    copy = shutil.copytree(DEPLOY, folder / "deploy") / "overlays" / overlay
    for name, texts in changes.items():
        for old, new in texts.items():
            text = (copy / name).read_text()
            assert old in text
            (copy / name).write_text(text.replace(old, new))
    command = [str(Path(sys.executable).parent / "kubectl"), "kustomize", str(copy)]
    return list(yaml.safe_load_all(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def test_the_component_for_introspection_sets_the_labels_and_grants_only_what_the_doctor_checks(tmp_path: Path) -> None:
    documents = with_component(tmp_path, "paperclip-introspection")
    found = {(each["kind"], each["metadata"]["name"]): each for each in documents}
    role = found["Role", "agent-runs-paperclip-introspection"]
    granted = {f"{rule['resources'][0]}.{rule['apiGroups'][0]}": tuple(rule["verbs"]) for rule in role["rules"]}
    assert granted == DEPLOYMENT_VERBS
    binding = found["RoleBinding", "agent-runs-paperclip-introspection"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "agent-runs-worker", "namespace": "paperclip"}]
    [container] = found["Deployment", "agent-runs-worker"]["spec"]["template"]["spec"]["containers"]
    [selector] = [each["value"] for each in container["env"] if each["name"] == "AGENT_RUNS_INHERIT_DEPLOYMENT"]
    settings = WorkerSettings.read({"AGENT_RUNS_INHERIT_DEPLOYMENT": selector})
    assert settings.inherit_deployment == "app.kubernetes.io/name=paperclip"


@pytest.mark.parametrize("selector", ["paperclip", "a in (b)", "a=b,", "a=b c", "=x", "a==b"])
def test_a_selector_that_is_no_list_of_labels_is_refused_with_an_example(selector: str) -> None:
    with pytest.raises(SettingsError, match=r"AGENT_RUNS_INHERIT_DEPLOYMENT: must be labels KEY=VALUE"):
        WorkerSettings.read({"AGENT_RUNS_INHERIT_DEPLOYMENT": selector})


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_an_overlay_creates_is_valid(overlay: str) -> None:
    for each in yaml.safe_load_all(built(overlay)):
        kubernetes_validate.validate(each, "1.29", strict=True)
