"""The overlays in deploy/, built by kubectl as `kubectl apply -k` does."""

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / "deploy" / "overlays"
TRIAL, PRODUCTION = "trial", "production"
OVERLAYS = (TRIAL, PRODUCTION)


@cache
def built(overlay: str) -> str:
    """The manifests of an overlay, as YAML documents."""
    kubectl = Path(sys.executable).parent / "kubectl"
    command = [str(kubectl), "kustomize", str(FOLDER / overlay)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def objects(overlay: str, kind: str) -> dict[tuple[str, str], Any]:
    documents = (each for each in yaml.safe_load_all(built(overlay)) if each["kind"] == kind)
    return {(each["metadata"].get("namespace", ""), each["metadata"]["name"]): each for each in documents}
