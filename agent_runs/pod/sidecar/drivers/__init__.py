"""The ways of driving an agent: one folder for each, and what they share.

What the driver of a turn knows is in a folder of its own (`folder`): a later process continues where one was killed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Driver(Protocol):
    """One way of driving an agent, for the sidecar's own process; the turn is done by another (`load`).

    Attributes:
        lost: why a turn ended otherwise if the agent's container ended first.
        ready: words for the agent's container, before it starts.
        reached: what the driver of a turn needs to reach the agent.
        rest_limit: the limit in the order to rest.
    """

    lost: str
    ready: tuple[str, ...]
    reached: dict[str, str]
    rest_limit: int

    def load(self) -> Callable[[str], None]:
        """What does the turn of a folder; raises nothing."""
        ...

    def take(self, within: Callable[[float, Callable[[], bool]], bool]) -> bool:
        """Whether an agent that rests takes the next turn. One that does not is ended, so it may begin late.

        Args:
            within: waits for something for so many seconds, while the agent's container runs.

        Raises:
            OSError: the agent has put something else in the place of a file.
        """
        ...
