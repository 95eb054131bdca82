"""The target and the options of a request, read from its path and query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from dev_stack.cluster.container_log import LogOptions
from dev_stack.cluster.errors import bad_request
from dev_stack.cluster.kinds import BY_PATH, PODS, Kind
from dev_stack.cluster.objects import parse_stamp


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
    """A boolean of the query."""
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
