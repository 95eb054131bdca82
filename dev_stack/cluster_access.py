"""Access to the embedded cluster by its kubeconfig, without a Kubernetes client: importing one takes a second."""

import base64
import json
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import aiohttp

from dev_stack.plan import CLAIM, NAMESPACE

_TIMEOUT: Final = aiohttp.ClientTimeout(total=5)


@dataclass(frozen=True)
class Access:
    """Address, token and certificate authority of the cluster."""

    server: str
    token: str = field(repr=False)
    authority: str

    @classmethod
    def read(cls, kubeconfig: Path) -> Self | None:
        """From its kubeconfig, which is JSON; None while it has not been written."""
        try:
            config: dict[str, Any] = json.loads(kubeconfig.read_text())
        except (OSError, ValueError):
            return None
        cluster = config["clusters"][0]["cluster"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        return cls(cluster["server"], config["users"][0]["user"]["token"], authority)

    async def ensure_claim(self) -> bool:
        """Create the claim for Paperclip's data volume, unless it exists. False while the cluster does not answer."""
        resources = {"requests": {"storage": "10Gi"}}
        claim = {
            "metadata": {"name": CLAIM},
            "spec": {"accessModes": ["ReadWriteMany"], "resources": resources, "storageClassName": "embedded"},
        }
        url = f"{self.server}/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims"
        trust = ssl.create_default_context(cadata=self.authority)
        try:
            async with (
                aiohttp.ClientSession(timeout=_TIMEOUT, headers={"Authorization": f"Bearer {self.token}"}) as session,
                session.post(url, json=claim, ssl=trust) as response,
            ):
                return response.status in (201, 409)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False
