"""Which limit a pod exceeded when its kubelet evicted it, by the kubelet's own message; pure.

Source: Kubernetes 1.20 to 1.34, pkg/kubelet/eviction/helpers.go and eviction_manager.go.
"""

import re
from typing import Final

from agent_runs.kube.quantity import amount

EVICTED: Final = frozenset({"Evicted", "TerminationByKubelet"})
"""The pod's reason, and that of its condition `DisruptionTarget`, which is set before."""
_LIMITS: Final = (
    re.compile(r'Usage of EmptyDir (?P<what>volume "[^"]{1,253}") exceeds the limit "(?P<limit>[^"]{1,40})"'),
    re.compile(r'(?P<what>Container \S{1,253}) exceeded its local ephemeral storage limit "(?P<limit>[^"]{1,40})"'),
    re.compile(
        r"(?P<what>Pod) ephemeral local storage usage exceeds the total limit of containers (?P<limit>\S{1,40}?)\.( |$)"
    ),
)


def exceeded_disk_limit(reason: str, message: str) -> str | None:
    """`volume "output" used more disk than its limit of 1Gi (1073741824 bytes)`; None for any other eviction.

    A node that is low on disk evicts pods that keep to their limits, too: that is no fault of theirs.
    """
    if reason not in EVICTED:
        return None
    match = next(filter(None, (pattern.search(message) for pattern in _LIMITS)), None)
    if match is None:
        return None
    limit = match["limit"]
    try:
        size = f" ({int(amount(limit))} bytes)"
    except ValueError:
        size = ""
    what = match["what"][0].lower() + match["what"][1:]
    return f"{what} used more disk than its limit of {limit}{size}"
