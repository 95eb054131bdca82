"""What the driver is to do, what the agent's profile says of it, and how far the turn is."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from agent_runs.pod.sidecar.drivers.folder import TURN, read_json, read_state
from agent_runs.pod.sidecar.drivers.versions import Windows


class Pattern(NamedTuple):
    """An error that is known.

    Attributes:
        code: of JSON-RPC; None: any.
        matches: somewhere in the message and the data. A group `status` is the HTTP status.
        name: OpenCode's, of the error.
        status: of HTTP.
    """

    code: int | None
    matches: re.Pattern[str]
    name: str
    status: int | None


class Profile(NamedTuple):
    """How this agent differs from others. The worker writes it, so it is believed.

    Attributes:
        title: for people.
        versions: of its program that are driven; empty: all.
        authenticate: a method of `authenticate`; None: not needed.
        client_meta: of the client's capabilities.
        failure: where in `_meta` of the answer to the prompt the turn's failure is; empty: nowhere.
        mode: of the session; None: the agent's own.
        model_option: `session/set_model`, or the id of a configuration option; None: set in another way.
        permissions: how the agent is answered that asks for one, `allow` or `reject`; `ask`: people are asked.
        usage: where the tokens are, a name of `usage`.
        usage_files: those of the agent's sessions, a glob below HOME.
        cost: where it is, `usage_update` or `pi_session`; None: nowhere.
        informational: texts of the agent that are no answer of the model.
    """

    title: str
    versions: Windows
    authenticate: str | None
    client_meta: dict[str, Any]
    failure: list[str]
    mode: str | None
    model_option: str | None
    permissions: str
    usage: str | None
    usage_files: str | None
    cost: str | None
    mcp_servers: list[Any]
    unknown_session: list[Pattern]
    errors: list[Pattern]
    informational: list[re.Pattern[str]]

    @classmethod
    def of(cls, raw: dict[str, Any]) -> Profile:
        """Return the profile in the turn.

        Raises:
            KeyError, TypeError, re.error: it is none.
        """
        compiled: dict[str, Any] = {
            "unknown_session": [_pattern(each) for each in raw["unknown_session"]],
            "errors": [_pattern(each) for each in raw["errors"]],
            "informational": [re.compile(each) for each in raw["informational"]],
        }
        return cls(**{**raw, **compiled})


def _pattern(raw: dict[str, Any]) -> Pattern:
    matches = re.compile(raw["matches"], re.DOTALL)
    return Pattern(raw.get("code"), matches, raw.get("name") or "UnknownError", raw.get("status"))


API_ADDRESS = "{env:PAPERCLIP_API_URL}"
"""In an MCP server: the address of the pod's API proxy, which is known only here."""


class Turn(NamedTuple):
    """What is to be done.

    Attributes:
        output: the folder that is shared with the agent's container.
        address: of the pod's API proxy.
        directory: absolute; where the agent works.
        session: the one to resume.
        title: of a new session; None: it gets none.
        start_timeout: seconds for each answer that must come before the prompt.
    """

    output: str
    address: str
    directory: str
    session: str | None
    title: str | None
    model: str
    start_timeout: float
    profile: Profile

    @classmethod
    def read(cls, folder: str) -> Turn:
        """Read it.

        Raises:
            OSError, ValueError, KeyError, TypeError, re.error: there is none, or it lacks something.
        """
        raw = read_json(folder, TURN)
        known = {name: raw[name] for name in cls._fields}
        known["profile"] = Profile.of(raw["profile"])
        return cls(**known)

    def mcp_servers(self) -> list[Any]:
        """Return the MCP servers, with the address of the API proxy."""
        address = json.dumps(self.address)[1:-1]
        servers: list[Any] = json.loads(json.dumps(self.profile.mcp_servers).replace(API_ADDRESS, address))
        return servers


class State(NamedTuple):
    """How far it is. What the agent has answered is not in it: the file of its output has that.

    Attributes:
        asked: names of the requests that may have been written to the agent.
        written: names of those that have been, as a whole.
        mark: bytes of the agent's output that were read before the prompt was sent.
        end: bytes of it that are of the turn or before it, once that is over.
        session: the agent's, once the prompt may have been sent.
    """

    asked: Sequence[str] = ()
    written: Sequence[str] = ()
    mark: int | None = None
    session: str = ""
    end: int | None = None

    @classmethod
    def read(cls, folder: str) -> State:
        """Read it; what never was written is the beginning.

        Raises:
            OSError, ValueError, TypeError: it cannot be read.
        """
        return cls(**read_state(folder))
