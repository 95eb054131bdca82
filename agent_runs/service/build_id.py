"""The build id that a worker registers with Temporal and that histories name."""

import hashlib
import os
from pathlib import Path

import workflows


def build_id() -> str:
    """`BUILD_ID` from the environment (set by the image), else a digest of the workflow code."""
    if from_image := os.environ.get("BUILD_ID"):
        return from_image
    digest = hashlib.sha256()
    for file in sorted(Path(workflows.__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return f"dev-{digest.hexdigest()[:8]}"
