"""What an affinity chooses nodes and pods by, in the form that the operator's policy lists: `KEY=VALUE`.

The affinities have the form that `agent_runs.contracts.pod_options` checks.
"""

from collections.abc import Iterator, Mapping
from typing import Any


def node_choices(affinity: Mapping[str, Any]) -> Iterator[str]:
    """What a node affinity chooses nodes by, as `KEY=VALUE`, `*` for each value that it leaves open."""
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    preferred = affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    for term in (*required.get("nodeSelectorTerms", ()), *(each["preference"] for each in preferred)):
        for each in (*term.get("matchExpressions", ()), *term.get("matchFields", ())):
            yield from _requirement_choices(each)


def pod_terms(affinity: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The terms of an affinity of pods, required and preferred ones."""
    yield from affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or ()
    for each in affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ():
        yield each["podAffinityTerm"]


def pod_choices(selector: Mapping[str, Any]) -> Iterator[str]:
    """What a label selector chooses pods by, as `KEY=VALUE`; an empty one chooses all of them, `*=*`."""
    labels, expressions = selector.get("matchLabels") or {}, selector.get("matchExpressions") or ()
    yield from (f"{key}={value}" for key, value in labels.items())
    for each in expressions:
        yield from _requirement_choices(each)
    if not labels and not expressions:
        yield "*=*"


def _requirement_choices(requirement: Mapping[str, Any]) -> Iterator[str]:
    values = requirement.get("values", ()) if requirement["operator"] == "In" else ["*"]
    yield from (f"{requirement['key']}={value}" for value in values)
