"""Names, keys and amounts are what Kubernetes takes, whichever field they are in."""

from typing import Any

import pytest

from agent_runs.contracts.errors import InvalidRequest
from agent_runs.paperclip.preparation import prepare
from tests.paperclip.contexts import minimal
from tests.support.cases import case

LONGEST = "a" * 253


def fields_with_a_label_key(key: str) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": {key: "x"}}, "topologyKey": "kubernetes.io/hostname"}
    spread = {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
    return {
        "labels": {key: "x"},
        "annotations": {key: "x"},
        "nodeSelector": {key: "x"},
        "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}},
        "topologySpreadConstraints": [spread],
        "podTemplate": {"metadata": {"labels": {key: "x"}, "annotations": {key: "x"}}},
    }


def fields_with_a_name(name: str) -> dict[str, Any]:
    volume = {"name": "v", "mountPath": "/v"}
    return {
        "serviceAccountName": name,
        "runtimeClassName": name,
        "priorityClassName": name,
        "extraVolumes": [{**volume, "secret": {"secretName": name}}],
        "podTemplate": {"spec": {"schedulerName": name, "hostAliases": [{"ip": "10.0.0.1", "hostnames": [name]}]}},
    }


def test_a_label_key_is_one_in_every_field() -> None:
    for key in ("app", "example.com/App_1.x", f"{LONGEST}/x", "a" * 63):
        for field, value in fields_with_a_label_key(key).items():
            with case(field, key):
                prepare(minimal(**{field: value}))
    for key in ("a..b/x", ".a/x", "A/x", f"a{LONGEST}/x", "a/b/c", "/x", "a/", "-a", "a" * 64, "a b", "a\n"):
        for field, value in fields_with_a_label_key(key).items():
            with case(field, key), pytest.raises(InvalidRequest, match=rf"(?s)config\.{field} .*Kubernetes label key"):
                prepare(minimal(**{field: value}))


def test_a_name_of_an_object_is_one_in_every_field() -> None:
    for name in ("a", "a.b-c.9", "a" * 64, LONGEST):
        for field, value in fields_with_a_name(name).items():
            with case(field, name):
                prepare(minimal(**{field: value}))
    for name in ("a..b", ".a", "a-", "A", "a_b", f"a{LONGEST}", "a b", "a\n"):
        for field, value in fields_with_a_name(name).items():
            with case(field, name), pytest.raises(InvalidRequest, match=rf"config\.{field}"):
                prepare(minimal(**{field: value}))
