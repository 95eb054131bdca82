"""JSON, merge and strategic merge patches as pure functions."""

from __future__ import annotations

import copy
from typing import Any

from local.cluster.kinds import Object
from local.cluster.refusals import Refused, bad_request

# How the API server's types merge lists of objects; lists that are not here are replaced whole.
_MERGE_KEYS = {
    "conditions": "type",
    "containerStatuses": "name",
    "containers": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumes": "name",
}


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386: null removes, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def strategic_merge(target: Any, patch: Any, field: str = "") -> Any:
    """A merge patch that merges the lists of `_MERGE_KEYS` by key and knows the `$patch` directives."""
    if isinstance(patch, list):
        return _merge_lists(target if isinstance(target, list) else [], patch, field)
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    if patch.get("$patch") == "replace":
        return {key: copy.deepcopy(value) for key, value in patch.items() if key != "$patch"}
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            result[name] = [item for item in result.get(name) or [] if item not in value]
        elif key.startswith("$"):
            continue  # $setElementOrder, $retainKeys: order and unions are not kept
        elif value is None:
            result.pop(key, None)
        else:
            result[key] = strategic_merge(result.get(key), value, key)
    return result


def _merge_lists(target: list[Any], patch: list[Any], field: str) -> list[Any]:
    if field == "finalizers":
        return patch + [item for item in target if item not in patch]
    key = _MERGE_KEYS.get(field)
    if key is None:
        return copy.deepcopy(patch)
    result = list(target)
    for item in patch:
        index = next((place for place, old in enumerate(result) if old.get(key) == item.get(key)), None)
        if item.get("$patch") == "delete":
            if index is not None:
                del result[index]
        elif index is None:
            result.append(copy.deepcopy(item))
        else:
            result[index] = strategic_merge(result[index], item)
    return result


def json_patch(target: Object, operations: Any) -> Object:
    """RFC 6902; 422 when an operation does not fit the object."""
    if not isinstance(operations, list):
        raise bad_request("json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    result = copy.deepcopy(target)
    for operation in operations:
        try:
            _apply(result, operation)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            message = f"the server rejected our request due to an error in our request: {operation}: {error}"
            raise Refused(422, "Invalid", message) from None
    return result


def _apply(document: Any, operation: dict[str, Any]) -> None:
    verb = operation["op"]
    if verb in ("move", "copy"):
        value = copy.deepcopy(_value_at(document, operation["from"]))
        if verb == "move":
            _apply(document, {"op": "remove", "path": operation["from"]})
        verb = "add"
    else:
        value = copy.deepcopy(operation.get("value"))
    *way, last = _steps(operation["path"])
    place = document
    for step in way:
        place = place[int(step)] if isinstance(place, list) else place[step]
    if verb == "test":
        if _value_at(document, operation["path"]) != value:
            raise ValueError("testing value failed")
    elif verb == "add":
        _add(place, last, value)
    elif verb == "replace":
        key: Any = int(last) if isinstance(place, list) else last
        place[key]  # a missing place is an error
        place[key] = value
    elif verb == "remove":
        del place[int(last) if isinstance(place, list) else last]
    else:
        raise ValueError(f"unexpected kind: {verb}")


def _add(place: Any, last: str, value: Any) -> None:
    if isinstance(place, list):
        place.insert(len(place) if last == "-" else int(last), value)
    else:
        place[last] = value


def _value_at(document: Any, path: str) -> Any:
    for step in _steps(path):
        document = document[int(step)] if isinstance(document, list) else document[step]
    return document


def _steps(path: str) -> list[str]:
    return [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")[1:]]
