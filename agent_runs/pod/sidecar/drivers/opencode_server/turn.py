"""What the driver of OpenCode's server is to do, and how far it is."""

from __future__ import annotations

from typing import NamedTuple

from agent_runs.pod.sidecar.drivers.folder import TURN, read_json, read_state


class Turn(NamedTuple):
    """What is to be done.

    Attributes:
        server: the file with the server's stdout, which the agent can write, too.
        directory: absolute; where the agent works.
        model: `<provider>/<model>`.
        session: the one to resume.
        read_to: the `seq` of that session's newest event before the turn, or of an older one; -1: not known. A journal
            can be long, so it is read from there.
        start_timeout: seconds for the server to come up.
    """

    server: str
    password: str
    directory: str
    title: str
    model: str
    variant: str | None
    agent: str | None
    session: str | None
    read_to: int
    start_timeout: float

    @classmethod
    def read(cls, folder: str) -> Turn:
        """Read it.

        Raises:
            OSError, ValueError, KeyError, TypeError: there is none, or it lacks something.
        """
        raw = read_json(folder, TURN)
        return cls(
            server=str(raw["server"]),
            password=str(raw["password"]),
            directory=str(raw["directory"]),
            title=str(raw["title"]),
            model=str(raw["model"]),
            variant=raw.get("variant") or None,
            agent=raw.get("agent") or None,
            session=raw.get("session") or None,
            read_to=int(raw.get("read_to", -1)),
            start_timeout=float(raw["start_timeout"]),
        )


class State(NamedTuple):
    """How far it is. A prompt has identifiers of its own, so that it is the same one however often it is sent.

    Attributes:
        session: OpenCode's.
        message, part: identifiers of the prompt.
        sent: whether the prompt may have reached the server.
        start: the `seq` before the prompt's first event, once it is known.
    """

    session: str = ""
    directory: str = ""
    message: str = ""
    part: str = ""
    sent: bool = False
    start: int | None = None

    @classmethod
    def read(cls, folder: str) -> State:
        """Read it; what never was written is the beginning.

        Raises:
            OSError, ValueError, TypeError: it cannot be read.
        """
        return cls(**read_state(folder))
