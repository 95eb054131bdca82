"""The shipped NetworkPolicies: whom agents reach, and who reaches the worker. Nothing here enforces them."""

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.kube.ownership import owner_labels

FILE = Path(__file__).parents[2] / "deploy" / "base" / "networkpolicy.yaml"
POLICIES: dict[str, Any] = {each["metadata"]["name"]: each for each in yaml.safe_load_all(FILE.read_text())}
AGENT = owner_labels(AttemptKey(run=RunKey(agent_id="a", company_id="c", run_id="r")))
WORKER = {"app.kubernetes.io/name": "agent-runs-worker"}
OWN, SYSTEM, MONITORING = ({"kubernetes.io/metadata.name": name} for name in ("paperclip", "kube-system", "monitoring"))


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    wanted = selector.get("matchLabels", {}).items() <= labels.items()
    others = selector.get("matchExpressions", [])
    assert all(each["operator"] == "NotIn" for each in others)
    return wanted and all(labels.get(each["key"]) not in each["values"] for each in others)


def is_peer(peer: Mapping[str, Any], labels: Mapping[str, str], namespace: Mapping[str, str]) -> bool:
    """Whether a pod is a peer of a rule, by the rules of NetworkPolicyPeer; without a selector it is a pod of OWN."""
    if "ipBlock" in peer:
        return False
    where = selects(peer["namespaceSelector"], namespace) if "namespaceSelector" in peer else namespace == OWN
    return where and selects(peer.get("podSelector", {}), labels)


def to_pod(labels: Mapping[str, str], namespace: Mapping[str, str], port: int) -> bool:
    """Whether an agent may open a connection to this port of such a pod."""
    return any(
        is_peer(peer, labels, namespace) and port in {each["port"] for each in rule["ports"]}
        for rule in POLICIES["agent-runs-agents"]["spec"]["egress"]
        for peer in rule["to"]
    )


def to_address(address: str, port: int) -> bool:
    """Whether an agent may open a connection to this address."""
    ip = ipaddress.ip_address(address)
    return any(
        ip in ipaddress.ip_network(block["cidr"])
        and not any(ip in ipaddress.ip_network(each) for each in block["except"])
        and port in {each["port"] for each in rule["ports"]}
        for rule in POLICIES["agent-runs-agents"]["spec"]["egress"]
        for block in (peer["ipBlock"] for peer in rule["to"] if "ipBlock" in peer)
    )


def to_worker(labels: Mapping[str, str], namespace: Mapping[str, str], port: int) -> bool:
    """Whether such a pod may open a connection to this port of a worker."""
    return any(
        is_peer(peer, labels, namespace) and port in {each["port"] for each in rule["ports"]}
        for rule in POLICIES["agent-runs-worker"]["spec"]["ingress"]
        for peer in rule["from"]
    )


def test_the_policies_are_valid_and_select_the_pods_that_we_make() -> None:
    for policy in POLICIES.values():
        kubernetes_validate.validate(policy, "1.29", strict=True)
    assert selects(POLICIES["agent-runs-agents"]["spec"]["podSelector"], AGENT)
    assert selects(POLICIES["agent-runs-worker"]["spec"]["podSelector"], WORKER)


def test_an_agent_reaches_dns_paperclip_and_https_outside() -> None:
    assert to_pod({"k8s-app": "kube-dns"}, SYSTEM, 53)
    assert to_pod({"app.kubernetes.io/name": "paperclip"}, OWN, 3100)
    assert to_address("93.184.215.14", 443)


@pytest.mark.parametrize(
    ("address", "port"),
    [
        pytest.param("169.254.169.254", 80, id="cloud metadata"),
        pytest.param("169.254.169.254", 443, id="cloud metadata by TLS"),
        pytest.param("10.96.0.1", 443, id="Kubernetes API"),
        pytest.param("192.168.1.1", 443, id="private network"),
        pytest.param("172.20.0.1", 443, id="another private network"),
        pytest.param("100.64.0.1", 443, id="carrier-grade NAT, as some clusters use it"),
        pytest.param("93.184.215.14", 22, id="another port"),
    ],
)
def test_an_agent_reaches_no_other_address(address: str, port: int) -> None:
    assert not to_address(address, port)


@pytest.mark.parametrize(
    ("labels", "namespace", "port"),
    [
        pytest.param({"app.kubernetes.io/name": "temporal"}, OWN, 7233, id="Temporal"),
        pytest.param(WORKER, OWN, 8090, id="transcripts"),
        pytest.param(WORKER, OWN, 8091, id="probes"),
        pytest.param(AGENT, OWN, 443, id="another agent"),
        pytest.param({"app.kubernetes.io/name": "paperclip"}, OWN, 5432, id="a database beside Paperclip"),
    ],
)
def test_an_agent_reaches_no_other_pod(labels: dict[str, str], namespace: dict[str, str], port: int) -> None:
    assert not to_pod(labels, namespace, port)


def test_who_reaches_the_worker() -> None:
    assert to_worker({"app.kubernetes.io/name": "paperclip"}, OWN, 8090)
    assert to_worker({}, {"kubernetes.io/metadata.name": "ingress"}, 8090)
    assert to_worker({}, MONITORING, 9464)
    assert not to_worker({}, OWN, 9464)
    assert not to_worker({}, OWN, 8091)
    assert not any(to_worker(AGENT, OWN, port) for port in (8090, 8091, 9464))
