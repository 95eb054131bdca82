"""How the API server is reached: what is missing is reported in one line, and credentials are renewed."""

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.config import incluster_config

from agent_runs.contracts.errors import ClusterUnavailable
from agent_runs.kube import credentials
from agent_runs.kube.client import Cluster
from agent_runs.kube.credentials import ClusterConfigError
from tests.kube.conftest import Scripted, kubeconfig
from tests.support.cases import case

IN_A_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443", "HOSTNAME": "worker-1"}


async def refusal(path: str | None, environ: dict[str, str] | None = None, context: str | None = None) -> str:
    with pytest.raises(ClusterConfigError) as refused:
        await Cluster.connect(path, context, environ=environ or {})
    assert "\n" not in str(refused.value)
    return str(refused.value)


def write_kubeconfig(folder: Path, body: object) -> str:
    path = folder / "kubeconfig"
    path.write_text(body if isinstance(body, str) else json.dumps(body))
    return str(path)


async def test_outside_a_pod_a_kubeconfig_is_required() -> None:
    assert "KUBERNETES_SERVICE_HOST is unset" in await refusal(None)


async def test_a_pod_without_its_token_reports_what_to_mount(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in IN_A_POD.items():
        monkeypatch.setenv(name, value)
    assert "automountServiceAccountToken: true" in await refusal(None, IN_A_POD)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param("", "cannot be used", id="empty"),
        pytest.param("{", "cannot be used", id="not YAML"),
        pytest.param({"clusters": [], "contexts": [], "users": []}, "current-context", id="no context"),
        pytest.param(kubeconfig("http://127.0.0.1:1", {}) | {"clusters": []}, "name c in", id="no cluster"),
    ],
)
async def test_an_unusable_kubeconfig_is_reported(tmp_path: Path, body: object, message: str) -> None:
    text = await refusal(write_kubeconfig(tmp_path, body))
    assert message in text
    assert str(tmp_path) in text


async def test_a_missing_kubeconfig_or_context_is_reported(tmp_path: Path) -> None:
    assert "does not exist" in await refusal(str(tmp_path / "nothing"))
    assert "nowhere" in await refusal(
        write_kubeconfig(tmp_path, kubeconfig("http://127.0.0.1:1", {})), context="nowhere"
    )


@pytest.mark.parametrize(
    ("configured", "context", "environ", "namespace"),
    [
        pytest.param("a", {"namespace": "b"}, {"PAPERCLIP_NAMESPACE": "c"}, "a", id="configured"),
        pytest.param(None, {"namespace": "b"}, {"PAPERCLIP_NAMESPACE": "c"}, "b", id="the context's"),
        pytest.param(None, {}, {"PAPERCLIP_NAMESPACE": "c"}, "c", id="the environment's"),
        pytest.param(None, {}, {"PAPERCLIP_NAMESPACE": " "}, "default", id="default"),
    ],
)
async def test_the_namespace_of_a_kubeconfig(
    tmp_path: Path, configured: str | None, context: dict[str, str], environ: dict[str, str], namespace: str
) -> None:
    path = write_kubeconfig(tmp_path, kubeconfig("http://127.0.0.1:1", {"token": "t"}, **context))
    async with await Cluster.connect(path, namespace=configured, environ=environ) as cluster:
        assert cluster.namespace == namespace


@pytest.mark.parametrize(
    ("environ", "namespace", "own"),
    [
        pytest.param({"PAPERCLIP_NAMESPACE": "p", "POD_NAMESPACE": "q"}, "p", "q", id="K3 PAPERCLIP_NAMESPACE"),
        pytest.param({"PAPERCLIP_NAMESPACE": "", "POD_NAMESPACE": "q"}, "q", "q", id="K3 POD_NAMESPACE"),
        pytest.param({}, "mounted", "mounted", id="K3 the service account's"),
    ],
)
def test_the_namespace_in_a_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], namespace: str, own: str
) -> None:
    (tmp_path / "namespace").write_text("mounted\n")
    monkeypatch.setattr(credentials, "_load_in_cluster", lambda **_: None)
    access = credentials._in_cluster(None, {**IN_A_POD, **environ}, tmp_path)
    assert (access.namespace, access.own_namespace, access.own_name) == (namespace, own, "worker-1")
    (tmp_path / "namespace").unlink()
    fallen_back = credentials._in_cluster(None, IN_A_POD, tmp_path)
    assert fallen_back.namespace == "default"


async def test_the_own_pod_is_read_where_it_lives(scripted: Scripted, tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path, kubeconfig(scripted.url, {"token": "t"}, namespace="agents"))
    scripted.answer_with(200, {"metadata": {"name": "worker-1"}})
    environ = {"POD_NAME": "worker-1", "POD_NAMESPACE": "home", "HOSTNAME": "a-pod-of-another-cluster"}
    async with await Cluster.connect(path, environ=environ) as cluster:
        assert await cluster.own_pod() == {"metadata": {"name": "worker-1"}}
    assert scripted.requests[-1][1] == "/api/v1/namespaces/home/pods/worker-1"


async def test_a_token_file_may_end_with_a_newline(scripted: Scripted, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-a-file\n")
    path = write_kubeconfig(tmp_path, kubeconfig(scripted.url, {"tokenFile": str(tmp_path / "token")}))
    async with await Cluster.connect(path, environ={}) as cluster:
        await cluster.version()
    assert scripted.requests[-1][2]["authorization"] == "Bearer from-a-file"


def plugin(folder: Path, script: str) -> dict[str, Any]:
    (folder / "plugin.py").write_text(script)
    return {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": [str(folder / "plugin.py")],
        }
    }


async def test_a_plugins_token_is_renewed_when_it_expires(scripted: Scripted, tmp_path: Path) -> None:
    expiry = (datetime.now(UTC) + timedelta(minutes=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    script = f"""
import json, pathlib
counter = pathlib.Path({str(tmp_path / "count")!r})
count = int(counter.read_text()) + 1 if counter.exists() else 1
counter.write_text(str(count))
status = {{"token": f"token-{{count}}", "expirationTimestamp": {expiry!r}}}
print(json.dumps({{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}}))
"""

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"gitVersion": "v1"})

    scripted.answer = answer
    path = write_kubeconfig(tmp_path, kubeconfig(scripted.url, plugin(tmp_path, script)))
    async with await Cluster.connect(path, environ={}) as cluster:
        await cluster.version()
        await cluster.version()
    tokens = [headers["authorization"] for _, _, headers, _ in scripted.requests]
    assert tokens == ["Bearer token-2", "Bearer token-3"]


async def test_a_failing_plugin_does_not_lead_to_anonymous_access(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_kubeconfig(tmp_path, kubeconfig("http://127.0.0.1:1", plugin(tmp_path, "raise SystemExit(1)")))
    assert "exec plugin returned no credentials" in await refusal(path)
    assert "process returned 1" in caplog.text


class Identity:
    """An API server that accepts one token, which may be renewed at its source."""

    def __init__(self, scripted: Scripted) -> None:
        self.accepted = "first"
        self._scripted = scripted
        scripted.answer = self._answer

    async def _answer(self, request: web.Request) -> web.Response:
        if request.headers.get("authorization", "").split()[-1:] == [self.accepted]:
            return web.json_response({"gitVersion": "v1"})
        status = {"kind": "Status", "code": 401, "reason": "Unauthorized", "message": "Unauthorized"}
        return web.json_response(status, status=401)


async def test_a_refused_token_is_an_outage_until_its_source_has_a_new_one(
    scripted: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "MIN_RELOAD_INTERVAL", timedelta())
    token, certificate = tmp_path / "token", tmp_path / "ca.crt"
    certificate.write_text("unused")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(certificate))
    script = f"""
import json
status = {{"token": open({str(token)!r}).read(), "expirationTimestamp": "2999-01-01T00:00:00Z"}}
print(json.dumps({{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}}))
"""
    sources: dict[str, dict[str, Any] | None] = {
        "a token file": {"tokenFile": str(token)},
        "the kubeconfig itself": {"token": "first"},
        "a plugin whose token has not expired": plugin(tmp_path, script),
        "the pod's service account": None,
    }
    for name, user in sources.items():
        with case(name):
            identity = Identity(scripted)
            token.write_text("first")
            path = None if user is None else write_kubeconfig(tmp_path, kubeconfig(scripted.url, user))
            async with await connected(path, scripted.url, monkeypatch) as cluster:
                await cluster.version()
                identity.accepted = "second"
                for _ in range(2):
                    with pytest.raises(ClusterUnavailable, match="does not accept the worker's credentials"):
                        await cluster.version()
                token.write_text("second")
                if user is not None and "token" in user:
                    write_kubeconfig(tmp_path, kubeconfig(scripted.url, {"token": "second"}))
                with pytest.raises(ClusterUnavailable, match="401 Unauthorized"):
                    await cluster.version()
                assert await cluster.version() == "v1"
                assert await cluster.version() == "v1"


async def connected(path: str | None, url: str, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    if path is not None:
        return await Cluster.connect(path, environ={})
    for name, value in IN_A_POD.items():
        monkeypatch.setenv(name, value)
    access = await credentials.load_access(None, None, None, IN_A_POD)
    access.configuration.host, access.configuration.ssl_ca_cert = url, None
    return Cluster(access)
