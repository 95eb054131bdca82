"""Writes the SBOM of the worker's image: CycloneDX 1.6 as JSON, from requirements-worker.lock.

    python deploy/sbom.py requirements-worker.lock > sbom.cdx.json

Lists what is installed of the lock file, since some packages in it are for other systems, and fails where another
version is installed. Needs only the standard library, so the image build runs it after `pip install`. The same lock
file and Python give the same bytes: there is no time in it. The base image has an SBOM of its own (docs/adr/0016).
"""

import hashlib
import json
import re
import sys
import tomllib
import uuid
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final

SPECIFICATION: Final = "1.6"
SCHEMA: Final = "http://cyclonedx.org/schema/bom-1.6.schema.json"
_PINNED: Final = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)(.*)$", re.MULTILINE)


class NotAsLocked(Exception):
    """What is installed is not what the lock file names."""


def sbom(lock: str, project: str) -> dict[str, Any]:
    """Return the SBOM.

    Args:
        lock: the text of requirements-worker.lock.
        project: the text of pyproject.toml, for our own name, version and licence.

    Raises:
        NotAsLocked: a package is missing, or installed in another version.
    """
    about = tomllib.loads(project)["project"]
    worker = _component("application", about["name"], about["version"], about["license"])
    libraries = [found for name, version, marker in _PINNED.findall(lock) if (found := _library(name, version, marker))]
    digest = hashlib.sha256(lock.encode()).hexdigest()
    content = json.dumps([worker, libraries], sort_keys=True)
    return {
        "$schema": SCHEMA,
        "bomFormat": "CycloneDX",
        "specVersion": SPECIFICATION,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, digest + content)}",
        "version": 1,
        "metadata": {
            "component": worker,
            "properties": [{"name": "agent-runs:requirements-worker.lock:sha256", "value": digest}],
        },
        "components": libraries,
        "dependencies": [{"ref": worker["bom-ref"], "dependsOn": [each["bom-ref"] for each in libraries]}],
    }


def _library(name: str, version: str, rest: str) -> dict[str, Any] | None:
    """The component of a locked package; None for one that its marker leaves out of this system."""
    try:
        installed = distribution(name)
    except PackageNotFoundError:
        if ";" in rest:
            return None
        raise NotAsLocked(f"{name} {version} is not installed") from None
    if installed.version != version:
        raise NotAsLocked(f"{name} is installed in version {installed.version}, not {version}")
    stated = installed.metadata.get_all("License-Expression") or [None]
    return _component("library", name, version, stated[0])


def _component(kind: str, name: str, version: str, licence: str | None) -> dict[str, Any]:
    """A package of PyPI has a package URL, by which databases of vulnerabilities find it; ours is in no index."""
    url = f"pkg:pypi/{re.sub('[-_.]+', '-', name).lower()}@{version}"
    component: dict[str, Any] = {"type": kind, "bom-ref": url, "name": name, "version": version}
    if kind == "library":
        component["purl"] = url
    if licence is not None:
        component["licenses"] = [{"expression": licence}]
    return component


def main(lock: Path) -> None:
    """Print the SBOM of the lock file beside pyproject.toml."""
    try:
        document = sbom(lock.read_text(), lock.with_name("pyproject.toml").read_text())
    except NotAsLocked as error:
        sys.exit(f"sbom: {error}: install {lock} first")
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
