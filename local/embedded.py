"""Asks the embedded cluster, by its own kubeconfig and without a Kubernetes client: importing one takes a second."""

import base64
import json
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import aiohttp

from local.plan import CLAIM, NAMESPACE

ANSWER: Final = aiohttp.ClientTimeout(total=5)
_CREATED: Final = frozenset({201, 409})


@dataclass(frozen=True)
class Access:
    """Where it is and how it knows us."""

    server: str
    token: str = field(repr=False)
    authority: str

    @classmethod
    def read(cls, kubeconfig: Path) -> Self | None:
        """From its kubeconfig, which is JSON; None while it has not been written."""
        try:
            told: dict[str, Any] = json.loads(kubeconfig.read_text())
        except (OSError, ValueError):
            return None
        cluster = told["clusters"][0]["cluster"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        return cls(cluster["server"], told["users"][0]["user"]["token"], authority)

    async def claimed(self) -> bool:
        """Make the claim for Paperclip's data volume, unless it is there. False while the cluster does not answer."""
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": CLAIM, "namespace": NAMESPACE},
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "resources": {"requests": {"storage": "10Gi"}},
                "storageClassName": "embedded",
            },
        }
        url = f"{self.server}/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims"
        trust = ssl.create_default_context(cadata=self.authority)
        try:
            async with (
                aiohttp.ClientSession(timeout=ANSWER, headers={"Authorization": f"Bearer {self.token}"}) as session,
                session.post(url, json=claim, ssl=trust) as answer,
            ):
                return answer.status in _CREATED
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False
