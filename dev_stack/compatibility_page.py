"""docs/compatibility.md: which versions of other programs are supported, and which ones CI runs.

    python -m dev_stack.compatibility_page NOTES            rewrites the page from what the tests have noted
    python -m dev_stack.compatibility_page --check NOTES    ends with 1 if they ran a version that the page lacks

`NOTES` is the file that the variable TEST_RAN named while `.ci/run` ran. A program of which it has nothing keeps its
row: the suite with it was skipped.
"""

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from agent_runs.agents.opencode import VERSIONS
from agent_runs.agents.profile import OPENCODE_TITLE, load
from agent_runs.pod.sidecar.drivers.versions import numbers
from dev_stack.markdown import table

PAGE_FILE: Final = Path(__file__).parents[1] / "docs" / "compatibility.md"
_OTHERS: Final = ("Paperclip", "Temporal Server", "Kubernetes", "PostgreSQL")
_INTRODUCTION: Final = """# Compatibility

The versions that CI runs, and those that are supported. `python -m dev_stack.compatibility_page` writes this page from
what the tests of `.ci/run` have noted.

Of each agent the tests run the oldest supported version and the newest. Later versions with the same first number are
supported, too. An agent of any other version gets no prompt: the run fails as `agent_version_unsupported`, before its
Job is created if the tag of its image tells the version (in a repository called `opencode`, or `agent-` and the agent's
name), else as soon as the program has said it. `agent-runs doctor` asks the program in the image of a configuration.
`opencode run` (`transport: run`) is not asked. The versions of Claude Code and Codex are those of the packages with
which they speak the Agent Client Protocol ([agents](agents.md)).

Nothing refuses another version of the other programs.

"""
_ROW: Final = re.compile(r"\| ([^|]+) \| ([^|]+) \|")


def versions_of_agents() -> dict[str, list[str]]:
    """The oldest and the newest supported version of each agent, by its title."""
    found = {OPENCODE_TITLE: [each for window in VERSIONS for each in window]}
    found |= {each.title: [*next(reversed(each.packages.values()))] for each in load().values()}
    return {title: list(dict.fromkeys(versions)) for title, versions in found.items()}


def noted(text: str) -> dict[str, list[str]]:
    """The versions of each program in the notes, in order."""
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        program, _, version = line.partition("\t")
        found.setdefault(program, set()).add(version)
    return {program: sorted(versions, key=numbers) for program, versions in found.items()}


def ran_by(page: str) -> dict[str, list[str]]:
    """The versions of each program that a page names."""
    rows = [match.groups() for line in page.splitlines() if (match := _ROW.match(line))]
    return {program: versions.split(", ") for program, versions in rows[2:]}


def page_text(ran: Mapping[str, Sequence[str]]) -> str:
    return _INTRODUCTION + table(["program", "run by CI", "supported"], _rows(ran))


def _rows(ran: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    for program, versions in versions_of_agents().items():
        yield [program, ", ".join(ran.get(program, ["none"])), "; ".join(_supported(versions))]
    for program in _OTHERS:
        yield [program, ", ".join(ran.get(program, ["none"])), "the same"]


def _supported(versions: Sequence[str]) -> Iterator[str]:
    """Each oldest version, and what follows it."""
    for first in dict.fromkeys(numbers(each)[0] for each in versions):
        oldest = next(each for each in versions if numbers(each)[0] == first)
        yield f"{oldest} or later, before {first + 1}.0"


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite or check the page; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m dev_stack.compatibility_page")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("notes", type=Path)
    given = parser.parse_args(arguments)
    known = ran_by(PAGE_FILE.read_text() if PAGE_FILE.exists() else "")
    ran = noted(given.notes.read_text())
    if not given.check:
        PAGE_FILE.write_text(page_text({**known, **ran}))
        return 0
    missing = [
        f"{name} {each}" for name, versions in ran.items() for each in versions if each not in known.get(name, [])
    ]
    if missing:
        print(f"docs/compatibility.md does not name what the tests ran: {', '.join(missing)}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
