"""What a request names: the target in its path, and in its query options and selectors of labels and fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from dev_stack.cluster.container_log import LogOptions
from dev_stack.cluster.errors import bad_request
from dev_stack.cluster.kinds import BY_PATH, PODS, Kind, Object
from dev_stack.cluster.objects import parse_stamp

Predicate = Callable[[Object], bool]
_EQUALITY = re.compile(r"(?P<key>[^=!\s]+)\s*(?P<operator>==?|!=)\s*(?P<value>[^=!\s]*)")
_EXISTENCE = re.compile(r"(?P<absent>!?)\s*(?P<key>[A-Za-z0-9./_-]+)")


@dataclass(frozen=True)
class Target:
    """The collection, object or subresource that a path names."""

    kind: Kind
    namespace: str
    name: str = ""
    subresource: str = ""

    @classmethod
    def parse(cls, path: str) -> Target | None:
        """`/api/v1/namespaces/x/pods/y/log` and the like; None for anything else."""
        parts = [part for part in path.split("/") if part]
        match parts:
            case ["api", "v1", *rest]:
                group = ""
            case ["apis", group, "v1", *rest]:
                pass
            case _:
                return None
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces":
            namespace, rest = rest[1], rest[2:]
        if not rest or len(rest) > 3:
            return None
        kind = BY_PATH.get((group, rest[0]))
        name, subresource = (*rest[1:], "", "")[:2]
        unknown_part = bool(subresource) and (kind is not PODS or subresource not in ("log", "exec"))
        if kind is None or (namespace and not kind.namespaced) or unknown_part:
            return None
        return cls(kind, namespace, name, subresource)


def flag(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "").lower() in ("true", "1")


def version_of(query: Mapping[str, str]) -> int | None:
    """`resourceVersion`; None when it is not given."""
    text = query.get("resourceVersion", "")
    if not text:
        return None
    if not text.isdigit():
        raise bad_request(
            f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        )
    return int(text)


def log_options(query: Mapping[str, str]) -> LogOptions:
    """The query of a log request; 400 for a bad time, and for what only a real kubelet can do."""
    for name in ("tailLines", "limitBytes", "previous"):
        if query.get(name, "false") != "false":
            raise bad_request(f"{name}: the embedded cluster does not imitate this option of logs")
    since = query.get("sinceTime")
    try:
        moment = None if since is None else parse_stamp(since).astimezone(UTC)
    except ValueError:
        raise bad_request(f'parsing time "{since}" as "2006-01-02T15:04:05Z07:00": cannot parse') from None
    seconds = query.get("sinceSeconds")
    if seconds is None:
        return LogOptions(flag(query, "follow"), flag(query, "timestamps"), moment)
    if not seconds.isdigit() or not int(seconds) or since is not None:
        raise bad_request(f'sinceSeconds: Invalid value: "{seconds}": a positive number, without sinceTime')
    moment = datetime.now(UTC) - timedelta(seconds=int(seconds))
    return LogOptions(flag(query, "follow"), flag(query, "timestamps"), moment, whole_seconds=False)


def by_labels(text: str) -> Predicate:
    """`a=b,c!=d,e,!f`; 400 for anything else, also for the sets that a real server knows (`a in (b,c)`)."""
    tests = [_label_test(part.strip()) for part in text.split(",") if part.strip()]
    return lambda body: all(test(body["metadata"].get("labels") or {}) for test in tests)


def _label_test(text: str) -> Callable[[dict[str, str]], bool]:
    if match := _EQUALITY.fullmatch(text):
        key, value, equal = match["key"], match["value"], match["operator"] != "!="
        return lambda labels: (labels.get(key) == value) is equal
    if match := _EXISTENCE.fullmatch(text):
        key, present = match["key"], not match["absent"]
        return lambda labels: (key in labels) is present
    raise bad_request(f'unable to parse requirement: found "{text}", expected: a label selector')


def by_fields(kind: Kind, text: str) -> Predicate:
    """`a.b=c,d.e!=f` over the fields the kind supports; 400 for others."""
    tests = [_field_test(kind, part.strip(), text) for part in text.split(",") if part]
    return lambda body: all(test(body) for test in tests)


def _field_test(kind: Kind, part: str, text: str) -> Predicate:
    match = _EQUALITY.fullmatch(part)
    if match is None:
        raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
    key, value, equal = match["key"], match["value"], match["operator"] != "!="
    if key not in ("metadata.name", "metadata.namespace", *kind.fields):
        raise bad_request(f'field selector "{text}": field label not supported: {key}')

    def test(body: Object) -> bool:
        found: object = body
        for step in key.split("."):
            found = found.get(step) if isinstance(found, dict) else None
        return (str(found or "") == value) is equal

    return test
