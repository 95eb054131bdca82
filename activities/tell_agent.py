"""Gives an agent that works a message of a person."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from temporalio import activity

from agent_runs.contracts.errors import ClusterUnavailable, MessageNotDelivered, PodLost
from agent_runs.contracts.messages import TellAgent
from agent_runs.contracts.start import MESSAGE_LIMIT, Binding, SealedMessage
from agent_runs.job import resting_pods
from agent_runs.kube.client import Cluster
from agent_runs.paperclip.sealing import Opener

INTERVAL: Final = timedelta(milliseconds=300)
"""Between two questions whether it has been delivered."""


@dataclass(frozen=True)
class TellAgentActivity:
    """The message goes straight from its seal into the pod."""

    cluster: Cluster
    opener: Opener

    @activity.defn
    async def tell_agent(self, input: TellAgent) -> None:
        """Returns once the agent has the message. May be repeated: the pod knows by its id whether it has it.

        Raises:
            MessageNotDelivered: the agent has ended, takes no messages or does not ask this; or its pod is not reached.
            SealedFieldUnreadable: sealed for another use or with another key.
            ClusterUnavailable: the API server refused or timed out, or the pod of a question does not answer; retried.
        """
        request = {"id": input.message_id, "by": input.by, **await self._content(input)}
        while True:
            try:
                answer = await resting_pods.ask(self.cluster, input.job, resting_pods.TELL_COMMAND, request)
            except (resting_pods.NotAsked, PodLost) as error:
                if input.question:
                    raise ClusterUnavailable("its pod does not answer, and the question waits") from None
                if isinstance(error, PodLost):
                    raise MessageNotDelivered(
                        "its pod does not answer: nobody knows whether it has the message"
                    ) from None
                before = ": an earlier worker may have reached it" if activity.info().attempt > 1 else ""
                raise MessageNotDelivered(f"its pod cannot be reached{before}") from None
            if not answer.accepted:
                raise MessageNotDelivered(answer.reason)
            if answer.delivered:
                return
            await asyncio.sleep(INTERVAL.total_seconds())

    async def _content(self, input: TellAgent) -> dict[str, Any]:
        """What the driver gets, in its own words."""
        own = {"question": input.question.partition("-")[2], "answers": ()} if input.question else {}
        if input.sealed is None:
            return {"text": "", **own}
        use = Binding.of_message(input.attempt.run, input.message_id)
        opened = await asyncio.to_thread(self.opener.open, input.sealed, SealedMessage, use)
        if opened.question != input.question:
            raise MessageNotDelivered("it was sealed for another question")
        if sum(len(each) + 1 for part in opened.answers for each in part) > MESSAGE_LIMIT:
            raise MessageNotDelivered(f"it is too long: at most {MESSAGE_LIMIT:,} characters in all")
        return {"text": opened.text, **own, **({"answers": opened.answers} if own else {})}
