"""The address at which pods of a cluster reach this machine, for the scripted model."""

import ipaddress
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp

from agent_runs.kube.credentials import ClusterConfigError, api_client, load_access
from dev_stack.subprocesses import StackError

_TIMEOUT: Final = aiohttp.ClientTimeout(total=10)

Route = Callable[[str], str | None]
"""The address this machine would use towards another one; None without a route."""

_ANYWHERE: Final = "192.0.2.1"
"""A documentation address (RFC 5737): stands for everything behind the default route."""


def route(target: str) -> str | None:
    """Ask the kernel, without sending anything: connecting a UDP socket only chooses a source address."""
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


async def host_for_pods(kubeconfig: Path) -> str:
    """The address of this machine that pods of a cluster reach.

    Raises:
        StackError: the cluster does not answer, or there is no such address.
    """
    try:
        address = address_for_pods(await nodes(str(kubeconfig)))
    except (ClusterConfigError, aiohttp.ClientError, OSError, ValueError) as error:
        raise StackError(
            f"{kubeconfig}: the cluster's nodes cannot be listed: {error}. Check that the file names a cluster that "
            "runs; if you may not list nodes, give this machine's address as pods reach it with --model-host."
        ) from None
    if address is None:
        raise StackError("no address of this machine is reachable for pods: give one with --model-host")
    return address


async def nodes(kubeconfig: str) -> list[dict[str, Any]]:
    """The cluster's core/v1 Node objects.

    Raises:
        ClusterConfigError: the file is unusable.
        OSError, ValueError: no answer, or a refusal.
    """
    access = await load_access(kubeconfig, None, None, {})
    api = api_client(access.configuration)
    try:
        request = await api.param_serialize(
            method="GET",
            resource_path="/api/v1/nodes",
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
        )
        answer = (await api.call_api(*request, _request_timeout=_TIMEOUT)).response
        async with answer:
            if answer.status != 200:
                raise ValueError(f"the API server answered {answer.status}")
            listed: list[dict[str, Any]] = (await answer.json())["items"]
            return listed
    finally:
        await api.close()


def address_for_pods(nodes: Iterable[Mapping[str, Any]], route: Route = route) -> str | None:
    """The address of this machine that pods of these nodes reach, None when there is none but loopback.

    `nodes` are core/v1 Node objects. In this order: an address of ours inside a node's pod network (this machine is
    the node, as with kind-like clusters and a bridge), the one towards a node, the one towards everything else.
    """
    listed = list(nodes)
    for node in listed:
        for network in _pod_networks(node):
            own = route(str(network[2 if network.num_addresses > 2 else 0]))
            if own is not None and ipaddress.ip_address(own) in network:
                return own
    targets = [address for node in listed for address in _addresses(node)]
    for own in map(route, [*targets, _ANYWHERE]):
        if own is not None and not ipaddress.ip_address(own).is_loopback:
            return own
    return None


def _pod_networks(node: Mapping[str, Any]) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    spec = node.get("spec") or {}
    return [ipaddress.ip_network(text) for text in (spec.get("podCIDRs") or [spec.get("podCIDR")]) if text]


def _addresses(node: Mapping[str, Any]) -> list[str]:
    addresses = (node.get("status") or {}).get("addresses") or []
    return [one["address"] for one in addresses if one.get("type") == "InternalIP"]
