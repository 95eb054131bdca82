"""What a run's transcript must not show: the secrets that came sealed with its request."""

from dataclasses import dataclass
from typing import Protocol

from activities.requests import Requests
from contracts.errors import SealedFieldUnreadable, TranscriptsUnavailable
from paperclip.redaction import Redaction
from paperclip.sealing import Opener


class KnownSecrets(Protocol):
    """Where a step learns what to keep out of a transcript."""

    async def redaction(self) -> Redaction:
        """What hides the secrets of the run that scheduled the calling activity."""
        ...


@dataclass(frozen=True)
class SealedSecrets:
    """Opens the sealed field of the run's own request; nothing of it leaves the step."""

    requests: Requests
    opener: Opener

    async def redaction(self) -> Redaction:
        """What hides the run's secrets.

        Raises:
            TranscriptsUnavailable: this worker lacks the sealing key. The agent works on, and so does its output once a
                worker has the key; written down unseen it could show a secret.
        """
        request = await self.requests.current()
        try:
            return Redaction.of(self.opener.secrets(request))
        except SealedFieldUnreadable as error:
            raise TranscriptsUnavailable(f"the run's secrets cannot be kept out of its transcript: {error}") from None
