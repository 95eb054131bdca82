"""`agent-runs transcripts`: serves transcripts and the pages of runs, without a worker."""

from agent_runs.cli.display import Display
from agent_runs.cli.follow import Interrupts
from agent_runs.cli.refusals import Refused
from agent_runs.client.connection import TemporalUnreachable, connect
from agent_runs.client.settings import ClientSettings
from agent_runs.transcripts.store import SqlTranscripts
from agent_runs.web.run_info import NoRunInfo, RunInfoSource, TemporalRunInfo
from agent_runs.web.serving import transcript_service
from agent_runs.web.transcripts import CannotListen


async def serve(listen: str | None, display: Display) -> int:
    """Serve until Ctrl-C. Without Temporal pages have no steps and no outcome."""
    settings = ClientSettings.read() if listen is None else ClientSettings.read(transcripts_listen=listen)
    if settings.transcripts_listen is None:
        raise Refused("no address to listen at: give --listen HOST:PORT or set AGENT_RUNS_TRANSCRIPTS_LISTEN")
    try:
        store = await SqlTranscripts.open(settings.transcripts)
    except ValueError as error:
        raise Refused(f"AGENT_RUNS_TRANSCRIPTS_URL: {error}") from None
    with Interrupts.installed() as interrupts:
        try:
            async with transcript_service(settings, store, await _runs(settings, display)) as base:
                display.values({"transcripts": str(base)})
                await interrupts.first.wait()
        except CannotListen as error:
            raise Refused(str(error)) from None
        finally:
            await store.close()
    return 0


async def _runs(settings: ClientSettings, display: Display) -> RunInfoSource:
    try:
        return TemporalRunInfo(await connect(settings), settings)
    except TemporalUnreachable as error:
        display.note(f"{error} Pages show no steps and no outcome; restart this command once Temporal answers.")
        return NoRunInfo()
