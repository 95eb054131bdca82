"""What a request to Kubernetes may come to, besides the failures that a run can end with."""

from typing import Final

import aiohttp
import msgspec
from kubernetes.aio.config import ConfigException

from agent_runs.contracts.errors import ClusterForbidden, ClusterUnavailable, RunError

CONNECTION_ERRORS: Final = (aiohttp.ClientError, TimeoutError, OSError, ConfigException, ValueError)
MAX_QUOTE: Final = 500
MAX_STATUS_BYTES: Final = 64 * 1024


class AlreadyExists(Exception):
    """An object of that name exists already. The caller reads it and decides whether it is its own."""


class LogRefused(Exception):
    """The log could not be opened. Not a failure of the run: the follower asks the container's status what to do.

    Attributes:
        status: HTTP status; 0 means that no answer came.
        reason: the API server's reason or the kind of connection error.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason


class LogGone(LogRefused):
    """404: pod or container no longer exists, so its log is lost."""


class LogNotReady(LogRefused):
    """400: the container has not started, or its runtime no longer knows it."""


class LogUnavailable(LogRefused):
    """429, 5xx, no connection, a timeout: opening the log may be retried."""


class LogCut(Exception):
    """An open log ended with an error instead of an end of file: reset, idle for too long, broken encoding."""


class ExecFailed(Exception):
    """A command in a container gave no complete output: it was not started, ended with an error, or was cut off.

    Attributes:
        exit_code: the command's; None when it did not run or its end is not known.
        status: HTTP status of a refusal instead of a connection, so that no command got any input; 0 when the
            connection failed or broke, or the container's runtime reports the failure.
    """

    def __init__(self, message: str, *, exit_code: int | None = None, status: int = 0) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.status = status


class Refusal(msgspec.Struct, frozen=True):
    """An answer of the API server other than success. Without a `reason` it was not Kubernetes' own."""

    verb: str
    resource: str
    status: int
    reason: str
    message: str

    def __str__(self) -> str:
        return (
            f"cannot {self.verb} {self.resource}: {self.status} {self.reason or 'no Kubernetes answer'}: {self.message}"
        )

    @property
    def is_not_found(self) -> bool:
        """Whether Kubernetes itself reports that the object does not exist. A proxy's 404 proves nothing."""
        return self.status == 404 and self.reason == "NotFound"

    @property
    def is_rbac_denial(self) -> bool:
        """Whether RBAC forbids the request. Quotas and admission refuse with 403, too; only RBAC names the user.

        An API server that has just started forbids what depends on roles it has not loaded yet; that does not count.
        """
        if self._is_rbac_loading:
            return False
        return self.status == 403 and "cannot" in self.message and "User" in self.message

    @property
    def _is_rbac_loading(self) -> bool:
        return self.status == 403 and "RBAC:" in self.message and "not found" in self.message

    def as_error(self, *, refused: type[RunError] = ClusterUnavailable) -> RunError:
        """Return the failure that this refusal is; `refused` when the API server objects to the request itself."""
        if self.status == 401:
            text = f"{self}; the API server does not accept the worker's credentials, which are read again"
            return ClusterUnavailable(text, verb=self.verb, resource=self.resource, status=self.status)
        if self._is_rbac_loading:
            return ClusterUnavailable(str(self), verb=self.verb, resource=self.resource, status=self.status)
        if self.is_rbac_denial or (self.status == 403 and refused is ClusterUnavailable):
            return ClusterForbidden(str(self), verb=self.verb, resource=self.resource, status=self.status)
        unavailable = self.status == 429 or self.status >= 500 or not self.reason or self.reason == "Conflict"
        kind = ClusterUnavailable if unavailable else refused
        return kind(str(self), verb=self.verb, resource=self.resource, status=self.status)


def accepted(answer: bytes | Refusal, *, refused: type[RunError] = ClusterUnavailable) -> bytes:
    """Return the body of the answer; a refusal is raised."""
    if isinstance(answer, Refusal):
        raise answer.as_error(refused=refused)
    return answer


def found(answer: bytes | Refusal, *, refused: type[RunError] = ClusterUnavailable) -> bool:
    """Whether the object exists; any other refusal than that it does not is raised."""
    if isinstance(answer, Refusal) and answer.is_not_found:
        return False
    accepted(answer, refused=refused)
    return True


def is_other_object(refusal: Refusal) -> bool:
    """Whether a patch was refused because the object has another `uid` or, if the patch has one, another version."""
    return refusal.reason == "Conflict" or (refusal.status == 422 and "metadata.uid" in refusal.message)


def log_refusal(refusal: Refusal) -> Exception:
    if refusal.is_rbac_denial or refusal.status == 403:
        return refusal.as_error()
    kind: type[LogRefused] = LogUnavailable
    if refusal.is_not_found:
        kind = LogGone
    elif refusal.status == 400 and refusal.reason:
        kind = LogNotReady
    return kind(refusal.status, refusal.reason, refusal.message)


def bounded(text: str) -> str:
    return " ".join(text.split())[:MAX_QUOTE]
