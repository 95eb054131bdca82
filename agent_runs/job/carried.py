"""A carried workspace: what an attempt's pod begins with, and how its containers reach the store."""

import json
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from agent_runs.agents.profile import AgentProfile
from agent_runs.contracts.errors import WorkspaceNotCarried, WorkspaceStoreUnavailable
from agent_runs.contracts.ignore import expression
from agent_runs.contracts.messages import CreateJob, Restored
from agent_runs.contracts.pod import HOME_DIRECTORY
from agent_runs.job.agent_pod import is_opencode, working_directory
from agent_runs.job.volumes import DATABASE_DIRECTORY
from agent_runs.transcript.tokens import Tokens
from agent_runs.workspace.store import Record, WorkspaceDamaged, WorkspaceStore, WorkspacesUnavailable
from agent_runs.workspace.tree import Tree

TOKEN_LIFETIME: Final = timedelta(days=31)
"""`stream_logs` may follow an agent for 30 days."""


@dataclass(frozen=True)
class Carried:
    """What a pod gets for its workspace.

    Attributes:
        config: what its sidecar and its init container read, with a token.
    """

    config: bytes = field(repr=False)
    restored: Restored


@dataclass(frozen=True)
class CarriedWorkspaces:
    """Begins the attempts whose workspaces are carried.

    Attributes:
        url: at which pods reach the workspace service.
    """

    store: WorkspaceStore
    tokens: Tokens
    url: str
    agents: Mapping[str, AgentProfile] = field(default_factory=dict)

    async def begin(self, input: CreateJob) -> Carried:
        """Fix the tree with which this attempt begins; from then on no earlier one can add another. May be repeated.

        Raises:
            WorkspaceNotCarried: there is none, or it was changed.
            WorkspaceStoreUnavailable: the store does not answer; retried.
        """
        try:
            number, from_record = await _begun(self.store, input)
        except WorkspaceDamaged as error:
            raise WorkspaceNotCarried(str(error)) from None
        except WorkspacesUnavailable as error:
            raise WorkspaceStoreUnavailable(str(error)) from None
        config = {
            "url": self.url,
            "token": self.tokens.mint_workspace(input.attempt, TOKEN_LIFETIME),
            "restore": number,
            "roots": roots(input, self.agents),
            "ignore": [expression(pattern) for pattern in input.config.workspace_ignore],
        }
        restored = Restored(number=number, attempt=from_record.attempt, steps=from_record.steps, at=from_record.at)
        return Carried(json.dumps(config).encode(), restored)


def roots(input: CreateJob, agents: Mapping[str, AgentProfile]) -> dict[str, str]:
    """The folders of the pod that are carried, by their places in the tree."""
    found = {"workspace": working_directory(input)}
    if is_opencode(input):
        return {**found, "session/opencode": DATABASE_DIRECTORY}
    kept = agents[input.config.agent].sessions
    return {**found, **{f"session/home/{folder}": posixpath.join(HOME_DIRECTORY, folder) for folder in kept}}


async def _begun(store: WorkspaceStore, input: CreateJob) -> tuple[int, Record]:
    """The number of the attempt's first entry, and the entry whose tree it has."""
    run, attempt = input.attempt.run, input.attempt.attempt
    ledger = await store.ledger(run)
    begun = next((number for number, each in ledger.items() if (each.kind, each.attempt) == ("begin", attempt)), None)
    before = [each for number, each in ledger.items() if each.kind != "returned" and number < (begun or number + 1)]
    if not before:
        raise WorkspaceNotCarried(f"no folder was sent for run {run.run_id}")
    last = before[-1]
    if begun is None:
        tree = await _with_session(store, input, last) if last.kind == "out" else last.tree
        record = Record(attempt, "begin", tree, datetime.now(UTC), session=last.session)
        begun = await store.record(run, record)
    return begun, last


async def _with_session(store: WorkspaceStore, input: CreateJob, out: Record) -> str:
    """The name of the tree that came from Paperclip, with the session of the run before, if that is still stored."""
    session, company = input.session, input.attempt.run.company_id
    if session is None or session.workspace_run is None:
        return out.tree
    earlier = await store.ledger(input.attempt.run.model_copy(update={"run_id": session.workspace_run}))
    if not earlier:
        return out.tree
    kept = (await store.tree(company, earlier[max(earlier)].tree)).entries
    files = (await store.tree(company, out.tree)).entries
    entries = (
        *(each for each in kept if each.path.partition("/")[0] == "session"),
        *(each for each in files if each.path.partition("/")[0] != "session"),
    )
    return await store.add_tree(company, msgspec.json.encode(Tree(entries)), known=out.tree)
