"""What can go wrong between a run and its transcript."""

from contracts.errors import RunError


class TranscriptsUnavailable(RunError):
    """The transcript store refused, timed out or cannot be reached. Tried again with back-off."""

    code = "transcripts_unavailable"
    next_step = "Check the transcript store (TRANSCRIPTS_URL, its disk or server); the run goes on once it answers."
    budget = "infrastructure"
    final = False
