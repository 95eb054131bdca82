"""`agent-runs transcripts` and `revoke-links`: serves transcripts and pages without a worker, and revokes links."""

from datetime import UTC, datetime

from agent_runs.cli.display import Display
from agent_runs.cli.follow import Interrupts
from agent_runs.cli.program import Refused
from agent_runs.cli.transcripts import open_store, stored_run
from agent_runs.client.connection import TemporalUnreachable, connect
from agent_runs.client.runs import find_run
from agent_runs.client.settings import ClientSettings
from agent_runs.web.access import REVOCATION_MAX_AGE
from agent_runs.web.run_info import NoRunInfo, RunInfoSource, TemporalRunInfo
from agent_runs.web.server import CannotListen
from agent_runs.web.serving import transcript_service


async def serve(listen: str | None, display: Display) -> int:
    """Serve until Ctrl-C. Without Temporal pages have no steps and no outcome."""
    settings = ClientSettings.read() if listen is None else ClientSettings.read(transcripts_listen=listen)
    if settings.transcripts_listen is None:
        raise Refused("no address to listen at: give --listen HOST:PORT or set AGENT_RUNS_TRANSCRIPTS_LISTEN")
    async with open_store(settings) as store:
        with Interrupts.installed() as interrupts:
            try:
                async with transcript_service(settings, store, await _runs(settings, display)) as base:
                    display.values({"transcripts": str(base)})
                    await interrupts.first.wait()
            except CannotListen as error:
                raise Refused(str(error)) from None
    return 0


async def revoke_links(run: str, display: Display) -> int:
    """Revoke all links to a run that were created until now. A run's own id needs no Temporal."""
    settings = ClientSettings.read()
    async with open_store(settings) as store:
        key = await stored_run(store, run) or (await find_run(await connect(settings), run)).key
        if not await store.attempts(key):  # a store that the service does not read would revoke nothing
            raise Refused(
                f"no output of run {key.run_id} is in the transcript store: set AGENT_RUNS_TRANSCRIPTS_URL to the "
                "store of the transcript service"
            )
        await store.revoke_links(key, datetime.now(UTC))
    display.values({"run": key.run_id})
    seconds = REVOCATION_MAX_AGE.total_seconds()
    display.note(f"existing links stop working within {seconds:g} s; `agent-runs show {key.name}` makes a new one")
    return 0


async def _runs(settings: ClientSettings, display: Display) -> RunInfoSource:
    try:
        return TemporalRunInfo(await connect(settings), settings)
    except TemporalUnreachable as error:
        display.note(f"{error} Pages show no steps and no outcome; restart this command once Temporal answers.")
        return NoRunInfo()
