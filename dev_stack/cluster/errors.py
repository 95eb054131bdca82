"""The API server's refusals: `Status` objects worded as a real server words them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from dev_stack.cluster.kinds import Kind, Object


class ApiError(Exception):
    """A request ends with this HTTP status and `Status` body. `retry_after` is in seconds."""

    def __init__(self, code: int, reason: str, message: str, *, retry_after: int | None = None, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.details = details

    @property
    def status(self) -> Object:
        status: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        status |= {"message": self.message, "reason": self.reason, "code": self.code}
        return status | ({"details": self.details} if self.details else {})


def bad_request(message: str) -> ApiError:
    """400: the request itself cannot be understood."""
    return ApiError(400, "BadRequest", message)


def not_found(kind: Kind, name: str) -> ApiError:
    """404 for a named object."""
    return ApiError(404, "NotFound", f'{kind.qualified} "{name}" not found', **_details(kind, kind.plural, name))


def already_exists(kind: Kind, name: str) -> ApiError:
    message = f'{kind.qualified} "{name}" already exists'
    return ApiError(409, "AlreadyExists", message, **_details(kind, kind.plural, name))


def conflict(kind: Kind, name: str, why: str) -> ApiError:
    """409: the caller worked on another version, or on another incarnation, of the object."""
    message = f'Operation cannot be fulfilled on {kind.qualified} "{name}": {why}'
    return ApiError(409, "Conflict", message, **_details(kind, kind.plural, name))


def expired(requested: int, oldest: int) -> ApiError:
    """410: the history from this resourceVersion on is no longer kept."""
    return ApiError(410, "Expired", f"too old resource version: {requested} ({oldest})")


def internal(message: str) -> ApiError:
    """500, as when the API server cannot reach a kubelet."""
    return ApiError(500, "InternalError", f"Internal error occurred: {message}", causes=[{"message": message}])


def _details(kind: Kind, named: str, name: str) -> Object:
    return {"name": name, "kind": named} | ({"group": kind.group} if kind.group else {})


@dataclass
class FieldErrors:
    """Collects everything that is wrong with an object, worded as the field errors of the real API server."""

    kind: Kind
    name: str
    causes: list[dict[str, str]] = field(default_factory=list)

    def invalid(self, path: str, value: object, why: str) -> None:
        """A value that breaks a rule."""
        self.add(path, "FieldValueInvalid", f"Invalid value: {json.dumps(value)}: {why}")

    def required(self, path: str, why: str = "") -> None:
        """A value that is missing."""
        self.add(path, "FieldValueRequired", f"Required value{': ' + why if why else ''}")

    def forbidden(self, path: str, why: str) -> None:
        """A change that is never allowed."""
        self.add(path, "FieldValueForbidden", f"Forbidden: {why}")

    def add(self, path: str, reason: str, message: str) -> None:
        self.causes.append({"reason": reason, "message": message, "field": path})

    def raise_if_any(self) -> None:
        if not self.causes:
            return
        texts = [f"{cause['field']}: {cause['message']}" for cause in self.causes]
        text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
        message = f'{self.kind.qualified_kind} "{self.name}" is invalid: {text}'
        details = _details(self.kind, self.kind.name, self.name)
        raise ApiError(422, "Invalid", message, **details, causes=self.causes)
