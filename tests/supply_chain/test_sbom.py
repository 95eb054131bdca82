"""The SBOM of the worker's image names everything that the lock file installs, and is valid CycloneDX."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cyclonedx.schema import _res as schemas
from jsonschema import Draft7Validator
from referencing import Registry, Resource

from deploy.sbom import SCHEMA, NotAsLocked, sbom
from tests.supply_chain.audits import ROOT

LOCK = (ROOT / "requirements-worker.lock").read_text()
PROJECT = (ROOT / "pyproject.toml").read_text()


def test_every_package_of_the_lock_file_for_this_system_is_in_the_sbom() -> None:
    document = sbom(LOCK, PROJECT)
    listed = {f"{each['name']}=={each['version']}" for each in document["components"]}
    for_every_system = set(re.findall(r"^(\S+==\S+) \\$", LOCK, re.MULTILINE))
    assert len(for_every_system) > 40
    assert for_every_system <= listed
    assert "colorama" not in {each["name"] for each in document["components"]} or sys.platform == "win32"
    versions = {each["name"]: each["version"] for each in document["components"]}
    assert {each["purl"] for each in document["components"]} >= {f"pkg:pypi/temporalio@{versions['temporalio']}"}
    assert document["metadata"]["component"]["name"] == "agent-runs"


def test_the_sbom_is_valid_cyclonedx() -> None:
    folder = Path(schemas.__file__).parent
    referenced = [
        (f"http://cyclonedx.org/schema/{path.name}", Resource.from_contents(json.loads(path.read_text())))
        for path in folder.glob("*.schema.json")
    ]
    document = sbom(LOCK, PROJECT)
    schema = json.loads((folder / "bom-1.6.SNAPSHOT.schema.json").read_text())
    assert schema["$id"] == document["$schema"] == SCHEMA
    validator = Draft7Validator(schema, registry=Registry().with_resources(referenced))
    assert [error.message for error in validator.iter_errors(document)] == []
    del document["components"][0]["name"]
    assert [error.message for error in validator.iter_errors(document)] == ["'name' is a required property"]


def test_the_same_lock_file_has_the_same_sbom_and_another_one_another_number() -> None:
    assert sbom(LOCK, PROJECT) == sbom(LOCK, PROJECT)
    other = LOCK.replace("--hash=sha256:0", "--hash=sha256:1", 1)
    assert sbom(other, PROJECT)["serialNumber"] != sbom(LOCK, PROJECT)["serialNumber"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        pytest.param("attrs==1.0 \\\n", r"attrs is installed in version \S+, not 1\.0", id="another version"),
        pytest.param("no-such-package==1.0 \\\n", r"no-such-package 1\.0 is not installed", id="missing"),
    ],
)
def test_an_image_that_is_not_as_locked_has_no_sbom(line: str, reason: str) -> None:
    with pytest.raises(NotAsLocked, match=reason):
        sbom(line, PROJECT)


def test_the_image_build_writes_the_sbom_with_the_command_that_is_tested() -> None:
    dockerfile = (ROOT / "deploy" / "worker.Dockerfile").read_text()
    built = re.search(r"^RUN \S+/python deploy/sbom\.py requirements-worker\.lock > (\S+)$", dockerfile, re.MULTILINE)
    assert built
    assert built[1] == "/opt/agent-runs/sbom.cdx.json"
    assert built.start() > dockerfile.index("-r requirements-worker.lock")
    command = [sys.executable, "deploy/sbom.py", "requirements-worker.lock"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert json.loads(printed)["bomFormat"] == "CycloneDX"


def test_the_base_image_can_be_pinned_by_its_digest() -> None:
    lines = (ROOT / "deploy" / "worker.Dockerfile").read_text().splitlines()
    (base,) = [line for line in lines if line.startswith("ARG BASE_IMAGE=")]
    assert base.removeprefix("ARG BASE_IMAGE=").startswith("python:3.11-slim")
    bases = [line.split()[1] for line in lines if line.startswith("FROM ")]
    assert bases == ["${BASE_IMAGE}", "${BASE_IMAGE}"]
