"""Images by digest: bases in Dockerfiles, and what is pushed is what the overlays deploy."""

import hashlib
import http.client
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from agent_runs.client.settings import SettingsError
from agent_runs.job.agent_pod import PYTHON_IMAGE
from agent_runs.service.settings import WorkerSettings
from deploy.images import COMPONENT, INIT_IMAGE, VARIABLES, images
from tests.supply_chain.audits import ROOT
from tests.support.image_registry import image_registry, skip_without_programs
from tests.support.overlays import OVERLAYS, PRODUCTION, TRIAL

PINNED = re.compile(r"[a-z0-9./-]+:[\w.-]+@sha256:[0-9a-f]{64}")
FOLDERS = {TRIAL: f"{TRIAL}/images", PRODUCTION: f"{PRODUCTION}/worker/images"}


@pytest.mark.parametrize("name", ["worker", "agent"])
def test_a_dockerfile_takes_its_bases_by_digest(name: str) -> None:
    text = (ROOT / "deploy" / f"{name}.Dockerfile").read_text()
    defaults = dict(re.findall(r"^ARG (\w+_IMAGE)=(\S+)$", text, re.MULTILINE))
    assert [each for each in defaults.values() if not PINNED.fullmatch(each)] == []
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert {f"${{{each}}}" for each in defaults} == set(bases)


def test_images_that_we_name_in_code_for_the_sidecar_and_for_the_init_container_have_digests() -> None:
    assert PINNED.fullmatch(PYTHON_IMAGE)
    assert PINNED.fullmatch(INIT_IMAGE)


def test_every_overlay_has_the_folder_that_the_command_writes() -> None:
    worker, agent = images()
    component = COMPONENT.format(name=worker.repository, version=f"newTag: {worker.tag}")
    variables = VARIABLES.format(agent=f"{agent.repository}:{agent.tag}", init=INIT_IMAGE)
    for folder in FOLDERS.values():
        written = ROOT / "deploy" / "overlays" / folder
        assert (written / "kustomization.yaml").read_text() == component
        assert (written / "images.env").read_text() == variables


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """As much of a checkout as `deploy/images.py` needs, with images of one small file."""
    copy = tmp_path / "checkout"
    shutil.copytree(ROOT / "deploy", copy / "deploy", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    for name in ("worker", "agent"):
        (copy / name).write_text(f"The image of {name}.\n")
        (copy / "deploy" / f"{name}.Dockerfile").write_text(f"FROM scratch\nCOPY {name} /{name}\n")
    return copy


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    skip_without_programs("buildah", "docker-registry")
    with image_registry(tmp_path / "registry") as address:
        yield address


def run(checkout: Path, *arguments: str, plain_http: bool = True) -> subprocess.CompletedProcess[str]:
    configuration = checkout.parent / "registry" / "registries.conf"
    environment = os.environ | ({"CONTAINERS_REGISTRIES_CONF": str(configuration)} if plain_http else {})
    command = [sys.executable, "deploy/images.py", *arguments]
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)


def deployed(overlay: Path) -> tuple[str, dict[str, str]]:
    """The image of the worker and its settings, as an overlay deploys them."""
    command = [str(Path(sys.executable).parent / "kubectl"), "kustomize", str(overlay)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = {(each["kind"], each["metadata"]["name"][:19]): each for each in yaml.safe_load_all(done.stdout)}
    [container] = found["Deployment", "agent-runs-worker"]["spec"]["template"]["spec"]["containers"]
    return container["image"], found["ConfigMap", "agent-runs-settings"]["data"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_digests_of_pushed_images_are_what_an_overlay_deploys(checkout: Path, registry: str, overlay: str) -> None:
    prefix = f"{registry}/team/"
    done = run(checkout, "--prefix", prefix, "--push", "--pin", "images")
    assert done.returncode == 0, done.stderr
    digests = dict(line.split() for line in done.stdout.splitlines())
    assert list(digests) == [f"{prefix}{each.repository}:{each.tag}" for each in images()]
    shutil.copytree(checkout / "images", checkout / "deploy/overlays" / FOLDERS[overlay], dirs_exist_ok=True)
    image, settings = deployed(checkout / "deploy/overlays" / overlay)
    worker, agent = digests.values()
    assert image == f"{prefix}agent-runs-worker@{worker}"
    assert (settings["AGENT_RUNS_IMAGE"], settings["AGENT_RUNS_INIT_IMAGE"]) == (f"{prefix}agent@{agent}", INIT_IMAGE)
    for repository, digest in (("agent-runs-worker", worker), ("agent", agent)):
        accepted = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
        connection = http.client.HTTPConnection(registry)
        connection.request("GET", f"/v2/team/{repository}/manifests/{digest}", headers=accepted)
        with closing(connection), connection.getresponse() as answer:
            assert (answer.status, f"sha256:{hashlib.sha256(answer.read()).hexdigest()}") == (200, digest)


def test_a_push_that_fails_pins_nothing(checkout: Path, registry: str) -> None:
    done = run(checkout, "--prefix", f"{registry}/team/", "--push", "--pin", "images", plain_http=False)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        1,
        "images: the push has failed, so nothing is pinned. Correct what is shown above",
    )
    assert not (checkout / "images").exists()


@pytest.mark.parametrize("arguments", [["--pin", "x"], ["--pin", "x", "--push", "--only", "worker"]])
def test_nothing_is_pinned_by_what_no_registry_has(checkout: Path, arguments: list[str]) -> None:
    done = run(checkout, *arguments)
    assert (done.returncode, "--pin needs --push" in done.stderr) == (2, True)


@pytest.mark.parametrize("name", ["AGENT_RUNS_IMAGE", "AGENT_RUNS_INIT_IMAGE", "AGENT_RUNS_SIDECAR_IMAGE"])
@pytest.mark.parametrize("tag", ["", ":1.2"])
def test_settings_take_images_by_digest(name: str, tag: str) -> None:
    image = f"registry.example:5000/team/image{tag}@sha256:{'a' * 64}"
    try:
        settings = WorkerSettings.read({name: image})
    except SettingsError as refused:
        pytest.fail(str(refused))
    assert getattr(settings, name.removeprefix("AGENT_RUNS_").lower()) == image
