"""Has one turn done by the server, in the way of its version."""

from __future__ import annotations

from agent_runs.pod.sidecar.drivers.folder import End, aborted, drive_to_end
from agent_runs.pod.sidecar.drivers.opencode_server.address import Address, Unusable, await_address
from agent_runs.pod.sidecar.drivers.opencode_server.served import ServedTurn, not_answered
from agent_runs.pod.sidecar.drivers.opencode_server.turn import State, Turn
from agent_runs.pod.sidecar.drivers.opencode_server.v1.drive import TurnOfJournal
from agent_runs.pod.sidecar.drivers.opencode_server.v2.drive import TurnOfMessages
from agent_runs.pod.sidecar.drivers.opencode_server.wire import Wire
from agent_runs.pod.sidecar.drivers.waiting import Aborted, Waiter


def drive(folder: str) -> None:
    """Do the turn in `folder`, or the rest of it. Returns when there is an end. Never raises.

    SIGTERM to this process aborts the turn.
    """
    drive_to_end(folder, lambda: _run(folder), lambda error: _failed(folder, error))


def way_of(address: Address) -> type[ServedTurn]:
    return TurnOfJournal if address.is_opencode_1 else TurnOfMessages


def _run(folder: str) -> End:
    waiter, state, turn = Waiter(), State.read(folder), Turn.read(folder)
    try:
        address = await_address(turn.server, turn.start_timeout, waiter)
    except Aborted:
        return aborted(state.session, sent=state.sent)
    except Unusable as error:
        return not_answered(error, state)
    return way_of(address)(folder, turn, state, Wire(address.port, turn.password, waiter)).run()


def _failed(folder: str, error: Exception) -> End:
    """The end after a fault of our own or a full disk. What cannot be read may have been sent."""
    detail = f"{type(error).__name__}: {error}"
    try:
        state = State.read(folder)
    except (OSError, ValueError, TypeError):
        return End(1, "driver_failed", detail)
    return End(1, "driver_failed" if state.sent else "server_not_started", detail, state.session or None)
