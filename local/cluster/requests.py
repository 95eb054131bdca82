"""What a request asks for, read from its path and query."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from local.cluster.kinds import BY_PATH, NAMESPACES, Kind
from local.cluster.logs import LogOptions
from local.cluster.objects import parse_stamp
from local.cluster.refusals import Refused, bad_request


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
                group, version = "", "v1"
            case ["apis", group, version, *rest]:
                pass
            case _:
                return None
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in NAMESPACES.subresources:
            namespace, rest = rest[1], rest[2:]
        if not rest or len(rest) > 3:
            return None
        kind = BY_PATH.get((group, version, rest[0]))
        if kind is None or (namespace and not kind.namespaced):
            return None
        name, subresource = (*rest[1:], "", "")[:2]
        if subresource and subresource not in kind.subresources:
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


def continue_token(version: int, namespace: str, name: str) -> str:
    """The opaque token for the page after this object."""
    return base64.urlsafe_b64encode(json.dumps([version, namespace, name]).encode()).decode()


def read_continue_token(token: str) -> tuple[int, tuple[str, str]]:
    """The version the first page was read at and the last key it held."""
    try:
        version, namespace, name = json.loads(base64.urlsafe_b64decode(token))
        return int(version), (str(namespace), str(name))
    except (binascii.Error, ValueError, TypeError):
        raise bad_request("continue key is not valid: illegal base64 or content") from None


def log_options(query: Mapping[str, str]) -> LogOptions:
    """The query of a log request; 422 for numbers out of range, 400 for a bad time."""
    since_seconds = _number(query, "sinceSeconds", least=1)
    since = None
    if "sinceTime" in query:
        try:
            since = parse_stamp(query["sinceTime"]).astimezone(UTC)
        except ValueError:
            raise bad_request(
                f'parsing time "{query["sinceTime"]}" as "2006-01-02T15:04:05Z07:00": cannot parse'
            ) from None
    if since is not None and since_seconds is not None:
        raise _invalid("sinceSeconds", "at most one of `sinceTime` or `sinceSeconds` may be specified", "Forbidden")
    if since_seconds is not None:
        since = datetime.now(UTC) - timedelta(seconds=since_seconds)
    return LogOptions(
        follow=flag(query, "follow"),
        timestamps=flag(query, "timestamps"),
        since=since,
        tail=_number(query, "tailLines", least=0),
        limit=_number(query, "limitBytes", least=1),
    )


def _number(query: Mapping[str, str], name: str, least: int) -> int | None:
    if name not in query:
        return None
    try:
        value = int(query[name])
    except ValueError:
        raise bad_request(f'strconv.ParseInt: parsing "{query[name]}": invalid syntax') from None
    if value < least:
        raise _invalid(name, f"must be greater than {'0' if least else 'or equal to 0'}", f"Invalid value: {value}")
    return value


def _invalid(field: str, why: str, what: str) -> Refused:
    message = f'PodLogOptions "" is invalid: {field}: {what}: {why}'
    causes = [{"reason": "FieldValueInvalid", "message": f"{what}: {why}", "field": field}]
    return Refused(422, "Invalid", message, kind="PodLogOptions", causes=causes)
