"""The Python client: start or join a run, follow it, fetch its outcome, list runs. `docs/python.md` has an example."""

from agent_runs.client.attach import Holder, Ticket, attach, attach_when_free
from agent_runs.client.connection import TemporalUnreachable, connect, run_to_end
from agent_runs.client.outcome import Cancelled, cancel, fetch_outcome
from agent_runs.client.runs import RunSummary, UnknownRun, find_run, list_runs
from agent_runs.client.settings import ClientSettings, SettingsError
from agent_runs.client.timeline import PhaseChange, Timeline, events
from agent_runs.client.wake import Wake, build_wake
from agent_runs.contracts.errors import InvalidRequest
from agent_runs.contracts.outcome import Outcome
from agent_runs.files import UnusableKey
from agent_runs.paperclip.sealing import Sealer, public_key

__all__ = [
    "Cancelled",
    "ClientSettings",
    "Holder",
    "InvalidRequest",
    "Outcome",
    "PhaseChange",
    "RunSummary",
    "Sealer",
    "SettingsError",
    "TemporalUnreachable",
    "Ticket",
    "Timeline",
    "UnknownRun",
    "UnusableKey",
    "Wake",
    "attach",
    "attach_when_free",
    "build_wake",
    "cancel",
    "connect",
    "events",
    "fetch_outcome",
    "find_run",
    "list_runs",
    "public_key",
    "run_to_end",
]
