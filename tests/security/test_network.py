"""The shipped NetworkPolicies: whom agents reach, and who reaches the worker. Nothing here enforces them."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import kubernetes_validate
import pytest

from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.kube.ownership import owner_labels
from tests.support.overlays import OVERLAYS, PRODUCTION, TRIAL, objects

AGENT = owner_labels(AttemptKey(run=RunKey(agent_id="a", company_id="c", run_id="r")))
WORKER = {"app.kubernetes.io/name": "agent-runs-worker"}
PAPERCLIP = {"app.kubernetes.io/name": "paperclip"}
AGENTS = {TRIAL: "paperclip", PRODUCTION: "paperclip-agents"}


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    wanted = selector.get("matchLabels", {}).items() <= labels.items()
    others = selector.get("matchExpressions", [])
    assert all(each["operator"] == "NotIn" for each in others)
    return wanted and all(labels.get(each["key"]) not in each["values"] for each in others)


@dataclass(frozen=True)
class Network:
    """What an overlay's policies allow.

    Attributes:
        agents: the namespace of agents.
    """

    policies: Mapping[tuple[str, str], Any]
    agents: str

    @property
    def egress(self) -> list[dict[str, Any]]:
        rules: list[dict[str, Any]] = self.policies[self.agents, "agent-runs-agents"]["spec"]["egress"]
        return rules

    @property
    def ingress(self) -> list[dict[str, Any]]:
        rules: list[dict[str, Any]] = self.policies["paperclip", "agent-runs-worker"]["spec"]["ingress"]
        return rules

    def agent_reaches_pod(self, labels: Mapping[str, str], namespace: str, port: int) -> bool:
        """Whether an agent may open a connection to this port of such a pod."""
        return any(
            is_peer(peer, labels, namespace, own=self.agents) and port in {each["port"] for each in rule["ports"]}
            for rule in self.egress
            for peer in rule["to"]
        )

    def agent_reaches_address(self, address: str, port: int) -> bool:
        """Whether an agent may open a connection to this address."""
        ip = ipaddress.ip_address(address)
        return any(
            ip in ipaddress.ip_network(block["cidr"])
            and not any(ip in ipaddress.ip_network(each) for each in block["except"])
            and port in {each["port"] for each in rule["ports"]}
            for rule in self.egress
            for block in (peer["ipBlock"] for peer in rule["to"] if "ipBlock" in peer)
        )

    def reaches_worker(self, labels: Mapping[str, str], namespace: str, port: int) -> bool:
        """Whether such a pod may open a connection to this port of a worker."""
        return any(
            is_peer(peer, labels, namespace, own="paperclip") and port in {each["port"] for each in rule["ports"]}
            for rule in self.ingress
            for peer in rule["from"]
        )


def is_peer(peer: Mapping[str, Any], labels: Mapping[str, str], namespace: str, *, own: str) -> bool:
    """Whether a pod is a peer of a rule, by the rules of NetworkPolicyPeer; without a selector it is a pod of `own`."""
    if "ipBlock" in peer:
        return False
    its_labels = {"kubernetes.io/metadata.name": namespace}
    where = selects(peer["namespaceSelector"], its_labels) if "namespaceSelector" in peer else namespace == own
    return where and selects(peer.get("podSelector", {}), labels)


@pytest.fixture(params=OVERLAYS)
def network(request: pytest.FixtureRequest) -> Network:
    return Network(objects(request.param, "NetworkPolicy"), AGENTS[request.param])


def test_the_policies_are_valid_and_select_the_pods_that_we_make(network: Network) -> None:
    for policy in network.policies.values():
        kubernetes_validate.validate(policy, "1.29", strict=True)
    assert selects(network.policies[network.agents, "agent-runs-agents"]["spec"]["podSelector"], AGENT)
    assert selects(network.policies["paperclip", "agent-runs-worker"]["spec"]["podSelector"], WORKER)


def test_an_agent_reaches_dns_paperclip_and_https_outside(network: Network) -> None:
    assert network.agent_reaches_pod({"k8s-app": "kube-dns"}, "kube-system", 53)
    assert network.agent_reaches_pod(PAPERCLIP, "paperclip", 3100)
    assert network.agent_reaches_address("93.184.215.14", 443)


def test_an_agents_pod_reaches_the_worker_at_the_port_for_workspaces_at_which_nobody_else_does(
    network: Network,
) -> None:
    assert network.agent_reaches_pod(WORKER, "paperclip", 8092)
    assert network.reaches_worker(AGENT, network.agents, 8092)
    assert not any(network.reaches_worker(each, "paperclip", 8092) for each in ({}, PAPERCLIP))


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
def test_an_agent_reaches_no_other_address(network: Network, address: str, port: int) -> None:
    assert not network.agent_reaches_address(address, port)


@pytest.mark.parametrize(
    ("labels", "port"),
    [
        pytest.param({"app.kubernetes.io/name": "temporal"}, 7233, id="Temporal"),
        pytest.param(WORKER, 8090, id="transcripts"),
        pytest.param(WORKER, 8091, id="probes"),
        pytest.param(AGENT, 443, id="another agent"),
        pytest.param(PAPERCLIP, 5432, id="a database beside Paperclip"),
    ],
)
def test_an_agent_reaches_no_other_pod(network: Network, labels: dict[str, str], port: int) -> None:
    assert not any(network.agent_reaches_pod(labels, namespace, port) for namespace in ("paperclip", network.agents))


def test_who_reaches_the_worker(network: Network) -> None:
    assert network.reaches_worker(PAPERCLIP, "paperclip", 8090)
    assert network.reaches_worker({}, "ingress", 8090)
    assert network.reaches_worker({}, "monitoring", 9464)
    assert not network.reaches_worker({}, "paperclip", 9464)
    assert not network.reaches_worker({}, "paperclip", 8091)
    assert not any(network.reaches_worker(AGENT, network.agents, port) for port in (8090, 8091, 9464))
