"""`agent-runs transcripts`: transcripts and the pages of runs, without a worker."""

from cli.display import Display
from cli.follow import Interrupts
from cli.refusals import Refused
from client.connection import TemporalUnreachable, connect
from client.settings import ClientSettings
from transcripts.service import CannotListen
from transcripts.store import SqlTranscripts
from web.facts import NoRuns, Runs, TemporalRuns
from web.serving import transcript_service


async def serve(listen: str | None, display: Display) -> int:
    """Serve until Ctrl-C. Without Temporal pages have no steps and no outcome."""
    settings = ClientSettings.read() if listen is None else ClientSettings.read(transcripts_listen=listen)
    if settings.transcripts_listen is None:
        raise Refused("where to listen is not said: give --listen HOST:PORT or set AGENT_RUNS_TRANSCRIPTS_LISTEN")
    try:
        store = await SqlTranscripts.open(settings.transcripts)
    except ValueError as error:
        raise Refused(f"AGENT_RUNS_TRANSCRIPTS_URL: {error}") from None
    with Interrupts.caught() as interrupts:
        try:
            async with transcript_service(settings, store, await _runs(settings, display)) as base:
                display.facts({"transcripts": str(base)})
                await interrupts.first.wait()
        except CannotListen as error:
            raise Refused(str(error)) from None
        finally:
            await store.close()
    return 0


async def _runs(settings: ClientSettings, display: Display) -> Runs:
    try:
        return TemporalRuns(await connect(settings), settings)
    except TemporalUnreachable as error:
        display.note(f"{error} Pages have no steps and no outcome until this is started again.")
        return NoRuns()
