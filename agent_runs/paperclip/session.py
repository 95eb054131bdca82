"""Reads the session that Paperclip stored for a task, and decides whether a wake may resume it.

Paperclip stores what a run returns as session parameters and passes it to the next wake of the same task. Every
spelling that the existing adapters ever wrote is read. Paperclip adds keys of its own (`__paperclip...`), which are
ignored. The plugin has no session codec: Paperclip's default one passes the parameters through.
Source: the existing adapters' session codecs.
"""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from pydantic import ValidationError

from agent_runs.contracts.pod import HOME_DIRECTORY
from agent_runs.contracts.request import OPENCODE, ContextRuntime, RunConfig, SessionParams, Workspace
from agent_runs.contracts.syntax import IDENTIFIER

ID_KEYS: Final = ("sessionId", "session_id", "sessionID")
CWD_KEYS: Final = ("cwd", "workdir", "folder")
_SESSION_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "cwd": CWD_KEYS,
    "workspaceId": ("workspaceId", "workspace_id"),
    "repoUrl": ("repoUrl", "repo_url"),
    "repoRef": ("repoRef", "repo_ref"),
    "agent": ("agent",),
    "agentVersion": ("agentVersion",),
    "rejected": ("rejected",),
    "workspaceRun": ("workspaceRun",),
}


MALFORMED: Final = (
    "the stored session is malformed, so a new one begins: a session's id is text of letters, digits and '_.:-', 128 at"
    " most"
)


NAMELESS: Final = "the stored session parameters name no session (`sessionId`), so a new one begins"
_PAPERCLIPS: Final = "__paperclip"
"""How the names of Paperclip's own parameters begin."""


def deserialize(raw: object) -> SessionParams | None:
    """Session parameters in any spelling; None when they name no session."""
    if not isinstance(raw, Mapping):
        return None
    session_id = _first(raw, ID_KEYS)
    if session_id is None:
        return None
    fields = {field: _first(raw, keys) for field, keys in _SESSION_FIELDS.items()}
    return SessionParams.model_validate({"sessionId": session_id, **fields})


def _first(raw: Mapping[Any, Any], keys: tuple[str, ...]) -> str | None:
    texts = (raw.get(key) for key in keys)
    return next((text.strip() for text in texts if isinstance(text, str) and text.strip()), None)


def decode(runtime: ContextRuntime) -> "Resume":
    """The session that Paperclip stored: `sessionParams` in any spelling, else the bare `sessionId`.

    What is stored and is none (not text, or nothing that OpenCode's `--session` could take) is dropped: nobody but an
    operator could correct it, and every wake would bring it again.
    """
    raw, bare = runtime.session_params, runtime.session_id
    params = raw if isinstance(raw, Mapping) else {}
    try:
        session = deserialize(params) or deserialize({ID_KEYS[0]: bare})
    except ValidationError:  # a text of it is too long
        return Resume(reason=MALFORMED)
    no_text = [each for each in (*map(params.get, ID_KEYS), bare) if not isinstance(each, str | None)]
    no_parameters = raw is not None and params is not raw
    if no_text or no_parameters or (session is not None and not IDENTIFIER.fullmatch(session.session_id)):
        return Resume(reason=MALFORMED)
    unknown = {name for name in params if not str(name).startswith(_PAPERCLIPS)}
    if session is None and unknown and unknown.isdisjoint([*ID_KEYS, *chain.from_iterable(_SESSION_FIELDS.values())]):
        return Resume(reason=NAMELESS)
    return Resume(session)


def working_directory(workspace: Workspace, config: RunConfig) -> str:
    """Where OpenCode works in the pod: the workspace, else `config.cwd`, else the agent's home."""
    return posixpath.normpath(workspace.cwd or config.cwd or HOME_DIRECTORY)


def session_params(
    session_id: str,
    workspace: Workspace,
    config: RunConfig,
    rejected: str | None = None,
    agent_version: str | None = None,
    workspace_run: str | None = None,
) -> SessionParams:
    return SessionParams(
        session_id=session_id,
        agent=None if config.agent == OPENCODE else config.agent,
        agent_version=agent_version,
        cwd=working_directory(workspace, config),
        workspace_id=workspace.workspace_id,
        repo_url=workspace.repo_url,
        repo_ref=workspace.repo_ref,
        rejected=rejected,
        workspace_run=workspace_run,
    )


@dataclass(frozen=True)
class Resume:
    """Which session a wake resumes, if any, and a sentence for people when the stored one is not resumed."""

    session: SessionParams | None = None
    reason: str | None = None


def resume(
    stored: SessionParams | None, directory: str, *, enabled: bool, agent: str = OPENCODE, served: bool = True
) -> Resume:
    """Decide whether a wake of this agent that works in `directory` may resume the `stored` session.

    OpenCode binds a session to its directory: resumed from another one it calls the model, runs tools in the old
    directory, prints nothing and never ends. Others find the session in its own directory only. A stored session
    without a directory is trusted, because Paperclip sometimes hands back the bare id; then its agent is not known.
    By its server OpenCode is asked for its version first; its command line would go on with a copy of its own.
    """
    if stored is None:
        return Resume()
    if not enabled:
        return Resume(reason=f"session {stored.session_id} is not resumed: resumeLastSession is off")
    if (maker := _maker(stored)) not in (None, agent):
        return Resume(
            reason=f"session {stored.session_id} is not resumed: it is {maker}'s, and the agent is {agent} now"
        )
    if stored.agent_version and not served:
        return Resume(
            reason=f"session {stored.session_id} is not resumed: OpenCode {stored.agent_version} has continued it, and "
            "its command line is not used"
        )
    if stored.cwd is not None and posixpath.normpath(stored.cwd) != posixpath.normpath(directory):
        elsewhere = (
            "OpenCode hangs when a session is resumed elsewhere" if agent == OPENCODE else "it is found there only"
        )
        return Resume(
            reason=f"session {stored.session_id} is not resumed: it belongs to {stored.cwd}, this wake works in "
            f"{directory}, and {elsewhere}"
        )
    return Resume(session=stored)


def _maker(stored: SessionParams) -> str | None:
    """The agent that made a session; None if that is not known. Only OpenCode's have a directory and no agent."""
    return stored.agent or (OPENCODE if stored.cwd is not None else None)
