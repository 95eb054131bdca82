"""What a request to Kubernetes may come to, besides the failures that a run can end with."""


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
        status: HTTP status of a refusal; 0 when the connection failed or broke.
    """

    def __init__(self, message: str, *, exit_code: int | None = None, status: int = 0) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.status = status
