"""What the API server answers when it will not do as asked: `Status` objects with the real server's words."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from local.cluster.kinds import Kind, Object


class Refused(Exception):
    """A request ends with this HTTP status and `Status` body."""

    def __init__(self, code: int, reason: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.retry_after: int | None = None  # seconds, for the header of that name
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details

    @property
    def status(self) -> Object:
        """The `Status` object, as sent."""
        body: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        if self.details:
            body["details"] = self.details
        return body


def bad_request(message: str) -> Refused:
    """400: the request itself cannot be understood."""
    return Refused(400, "BadRequest", message)


def not_found(kind: Kind, name: str) -> Refused:
    """404 for a named object."""
    message = f'{kind.qualified} "{name}" not found'
    return Refused(404, "NotFound", message, **_about(kind, name, plural=True))


def no_such_path() -> Refused:
    """404 for a path the server does not serve."""
    return Refused(404, "NotFound", "the server could not find the requested resource")


def already_exists(kind: Kind, name: str) -> Refused:
    """409: the name is taken."""
    message = f'{kind.qualified} "{name}" already exists'
    return Refused(409, "AlreadyExists", message, **_about(kind, name, plural=True))


def conflict(kind: Kind, name: str, why: str | None = None) -> Refused:
    """409: the caller worked on an old version of the object."""
    why = why or "the object has been modified; please apply your changes to the latest version and try again"
    message = f'Operation cannot be fulfilled on {kind.qualified} "{name}": {why}'
    return Refused(409, "Conflict", message, **_about(kind, name, plural=True))


def expired(asked: int, oldest: int) -> Refused:
    """410: the history from this resourceVersion on is no longer kept."""
    return Refused(410, "Expired", f"too old resource version: {asked} ({oldest})")


def internal(message: str) -> Refused:
    """500, as when the API server cannot reach a kubelet."""
    return Refused(500, "InternalError", f"Internal error occurred: {message}", causes=[{"message": message}])


def _about(kind: Kind, name: str, *, plural: bool) -> dict[str, str]:
    about = {"name": name, "kind": kind.plural if plural else kind.name}
    return about | ({"group": kind.group} if kind.group else {})


@dataclass
class Problems:
    """Collects every fault of an object, worded as the field errors of the real API server."""

    kind: Kind
    name: str
    causes: list[dict[str, str]] = field(default_factory=list)

    def invalid(self, path: str, value: object, why: str) -> None:
        """A value that breaks a rule."""
        self._add(path, "FieldValueInvalid", f"Invalid value: {json.dumps(value)}: {why}")

    def required(self, path: str, why: str = "") -> None:
        """A value that is missing."""
        self._add(path, "FieldValueRequired", f"Required value{': ' + why if why else ''}")

    def unsupported(self, path: str, value: object, supported: list[str]) -> None:
        """A value outside an enumeration."""
        known = ", ".join(f'"{one}"' for one in sorted(supported))
        self._add(path, "FieldValueNotSupported", f"Unsupported value: {json.dumps(value)}: supported values: {known}")

    def duplicate(self, path: str, value: object) -> None:
        """A value that may occur once only."""
        self._add(path, "FieldValueDuplicate", f"Duplicate value: {json.dumps(value)}")

    def missing(self, path: str, value: object) -> None:
        """A reference to something that is not there."""
        self._add(path, "FieldValueNotFound", f"Not found: {json.dumps(value)}")

    def too_long(self, path: str, limit: int) -> None:
        """More bytes than allowed."""
        self._add(path, "FieldValueTooLong", f"Too long: must have at most {limit} bytes")

    def forbidden(self, path: str, why: str) -> None:
        """A change or combination that is never allowed."""
        self._add(path, "FieldValueForbidden", f"Forbidden: {why}")

    def raise_if_any(self) -> None:
        """Raise 422 if anything was found."""
        if not self.causes:
            return
        texts = [f"{cause['field']}: {cause['message']}" for cause in self.causes]
        text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
        about = _about(self.kind, self.name, plural=False)
        message = f'{self.kind.qualified_kind} "{self.name}" is invalid: {text}'
        raise Refused(422, "Invalid", message, **about, causes=self.causes)

    def _add(self, path: str, reason: str, message: str) -> None:
        self.causes.append({"reason": reason, "message": message, "field": path})
