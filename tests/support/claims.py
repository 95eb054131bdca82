"""PersistentVolumeClaims of the embedded cluster."""

from typing import Any


def data_claim(name: str, mode: str = "ReadWriteMany") -> dict[str, Any]:
    """The claim of a data volume."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "accessModes": [mode],
            "storageClassName": "standard",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
