"""The secrets that a run's transcript must not show: those in the sealed fields of its request."""

from dataclasses import dataclass
from typing import Protocol

from agent_runs.contracts.errors import SealedFieldUnreadable, TranscriptsUnavailable
from agent_runs.paperclip.redaction import Redaction
from agent_runs.paperclip.sealing import Opener
from agent_runs.requests.history import Requests


class KnownSecrets(Protocol):
    """Gives an activity what to redact in a transcript."""

    async def redaction(self) -> Redaction:
        """Returns the redaction of the secrets of the run that scheduled the calling activity."""
        ...


@dataclass(frozen=True)
class SealedSecrets:
    """Opens the sealed secrets of the run's own request; they do not leave the activity."""

    requests: Requests
    opener: Opener

    async def redaction(self) -> Redaction:
        """Returns the redaction of the run's secrets.

        Raises:
            TranscriptsUnavailable: this worker lacks the sealing key. Retried, while the agent continues: its output is
                stored once a worker has the key, because unredacted it could show a secret.
        """
        request = await self.requests.current()
        try:
            return Redaction.from_secrets(self.opener.secrets(request))
        except SealedFieldUnreadable as error:
            raise TranscriptsUnavailable(f"the run's secrets cannot be kept out of its transcript: {error}") from None
