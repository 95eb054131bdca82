"""Which agents meet a test that all of them can be put to.

Each agent is another program, but the rules are the same, so two agents check each rule, and each agent is checked by
two rules of five. TEST_ALL_AGENTS=1 puts all of them to every test: after a change of an agent's version or profile,
and before `python -m tests.faults.table`.
"""

import os
import zlib
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from dev_stack.agent_programs import PROGRAMS

SAMPLE: Final = 2


def left_out(tests: Mapping[str, str]) -> set[str]:
    """The ids of the tests that are not in the sample. Of an agent's models it has the first one.

    Args:
        tests: for the id of each test of one agent, the agent.
    """
    if os.environ.get("TEST_ALL_AGENTS"):
        return set()
    rules = defaultdict[str, dict[str, str]](dict)
    for test, agent in tests.items():
        function, _, case = test.partition(f"[{agent}")
        rules[function + ("" if "/" in case else case)].setdefault(agent, test)
    chosen = {
        test for rule, of in rules.items() for test in [of[agent] for agent in order(rule) if agent in of][:SAMPLE]
    }
    return set(tests) - chosen


def order(rule: str) -> list[str]:
    """The agents, as they are chosen for this rule."""
    agents = list(PROGRAMS)
    first = zlib.crc32(rule.encode()) % len(agents)
    return agents[first:] + agents[:first]
