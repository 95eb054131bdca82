"""What a text says that there is: files, modules, commands, settings, tests; and whether there is such a thing.

A text may name something in passing that looks like ours and is not, so each kind has a shape that hardly anything
else has: a path begins with a folder of this checkout, a dotted name with one of its packages.
"""

import ast
import importlib.util
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Final

from typer.core import TyperGroup
from typer.main import get_command

from agent_runs.cli.main import app as program
from agent_runs.client.settings import KNOWN, PREFIX
from dev_stack.__main__ import app as stack
from tests.prose.sources import ROOT, Passage, content, files, identifiers, is_python, nodes, passages, tree

FOREIGN: Final = {
    "SKILL.md": "the file that makes a folder a skill, for Paperclip and the agents",
    "AGENTS.md": "instructions of Paperclip, OpenCode and Codex",
    "CLAUDE.md": "Claude Code's instructions",
    "GEMINI.md": "Gemini CLI's instructions",
    "QWEN.md": "Qwen Code's instructions",
    "adapter/dist": "built by ./dev adapter",
    "deploy/overlays/mine*": "made by the commands of docs/install.md",
    "adapter/node_modules*": "installed by ./dev",
    "environment.sh": "written by ./dev dev",
    "contracts": "the title of schema.json, agent-runs contracts",
    "writer.py": "written by bench/host_loop.py",
    "AGENT_RUNS_MAX_RUN": "an example of a misspelt setting",
    "AWS_ENDPOINT_URL": "read by obstore, as are the next two",
    "GOOGLE_SERVICE_ACCOUNT_KEY": "of Google's storage",
    "AZURE_STORAGE_ACCOUNT_*": "of Azure's",
    "temporal_*": "metrics of Temporal's SDK",
    "agent_runs_*_total": "our counters as Prometheus has them",
    "TEMPORAL_*": "settings of Temporal's SDKs",
    "OTEL_*": "settings of OpenTelemetry",
    "OPENCODE_MODELS_PATH": "OpenCode's own variable",
    "StartActivity": "a span of Temporal's SDK",
    "OpenTelemetryPlugin": "a class of Temporal's SDK",
    "history.timerProcessorMaxTimeShift": "a setting of Temporal's server",
    "DescribeTaskQueue": "a call of Temporal's server",
    "HttpOnly": "an attribute of a cookie",
    "Secure": "an attribute of a cookie",
    "caches": "a storage of browsers",
    "indexedDB": "a storage of browsers",
    "PAPERCLIP_ADAPTER_MODELS": "read by Paperclip",
    "ConfigField": "a type of Paperclip's",
    "reattachOrphanedJobs": "a field of the earlier adapters",
    "maxConcurrentRuns": "a setting of Paperclip's",
    "optionalDependencies": "a field of npm's packages",
    "resourceFieldRef": "a field of Kubernetes' pods",
    "zlib.deflateRawSync": "a function of Node's",
}
"""What texts name and others have: no file, code or setting of ours. Shell patterns."""

FOLDERS: Final = (
    *("activities", "agent_runs", "workflows", "dev_stack", "tests", "bench", "docs", "deploy", "adapter", r"\.ci"),
)
PACKAGES: Final = ("activities", "agent_runs", "workflows", "dev_stack", "tests", "bench")
"""What can be imported from the root of the checkout, but for `worker`, which log events begin with, too."""
SUFFIXES: Final = ("py", "ts", "mjs", "sh", "md")
"""Of files that a text may name without their folder."""


@dataclass(frozen=True)
class Name:
    """Something that a text says there is.

    Attributes:
        place: `path:line` of the text.
        fault: why there is no such thing, in a few words.
    """

    place: str
    name: str
    fault: str

    def __str__(self) -> str:
        return f"{self.place}: {self.name}: {self.fault}"


def stale() -> list[Name]:
    """What texts name and is not there, in the order of files and lines."""
    return [name for passage in passages() for name in stale_in(passage)]


def stale_in(passage: Passage) -> Iterator[Name]:
    """What one text names and is not there."""
    for pattern, fault_of in KINDS:
        for match in pattern.finditer(passage.text):
            name = next((group for group in match.groups() if group), match[0])
            if not any(fnmatch(name, foreign) for foreign in FOREIGN) and (fault := fault_of(name, passage)):
                yield Name(passage.place(match.start()), name, fault)


# --- files ---


@cache
def _folders() -> frozenset[str]:
    return frozenset(str(parent) for path in files() for parent in Path(path).parents)


@cache
def _endings() -> frozenset[str]:
    """Every file and folder, by its name alone and with some or all of the folders it is in."""
    return frozenset(
        "/".join(path.split("/")[first:]) for path in (*files(), *_folders()) for first in range(path.count("/") + 1)
    )


def _path_fault(name: str, _: Passage) -> str | None:
    """Judge a path from the root; `docs/adr/0004` will do for a decision."""
    path = name.rstrip("./")
    if any(ROOT.glob(path)) or any(ROOT.glob(f"{path}-*.md")) or path in _endings():
        return None
    return "no such file or folder"


def _link_fault(name: str, passage: Passage) -> str | None:
    if not passage.path.endswith(".md"):
        return None
    target = name.partition("#")[0]
    if not target or (ROOT / passage.path).parent.joinpath(target).exists():
        return None
    return "the link leads nowhere"


def _file_name_fault(name: str, _: Passage) -> str | None:
    return None if name in _endings() else "no such file"


def _folder_fault(name: str, _: Passage) -> str | None:
    return None if name.rstrip("/") in _endings() else "no such folder"


# --- modules ---


def _dotted_fault(name: str, _: Passage) -> str | None:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        if module := _module(parts[:length]):
            rest = parts[length:]
            return None if not rest or rest[0] in _defined(module) else f"{'.'.join(parts[:length])} has no {rest[0]}"
    return "no such module"


def _short_fault(name: str, _: Passage) -> str | None:
    """Judge `kube.client`, which leaves out the package it is in."""
    first, second, *_more = name.split(".")
    bases = [
        path
        for path in _folders()
        if f"{path}/__init__.py" in files() and path.endswith(f"/{first}") and not path.startswith("tests/")
    ]
    modules = [path for path in files() if is_python(path) and any(path.startswith(f"{base}/") for base in bases)]
    if (
        not modules
        or second in ("db", "json", "sh")
        or any(Path(path).stem == second or second in _defined(path) for path in modules)
    ):
        return None
    return f"{first} has no {second}"


@cache
def _known_to_all() -> frozenset[str]:
    """What every package may name: the packages at the top and in `agent_runs`, `worker`, and the activities."""
    folders = (folder for folder in _folders() if re.fullmatch(r"(agent_runs/)?\w+", folder))
    modules = (path for path in files() if re.fullmatch(r"(activities/)?\w+\.py", path))
    return frozenset(Path(path).stem for path in (*folders, *modules))


def _member_fault(name: str, passage: Passage) -> str | None:
    """Judge a word in what a package states of itself: its code has it, or everybody knows it."""
    package, slash, file = passage.path.rpartition("/")
    if passage.line != 1 or file != "__init__.py":
        return None
    known = name in identifiers(package + slash) or name in _known_to_all()
    return None if known else f"no code of {package} has this name"


def _identifier_fault(name: str, _: Passage) -> str | None:
    if PREFIX in name or any(setting.endswith(name) for setting in KNOWN):
        return None
    parts = name.split(".")
    if len(parts) > 1:  # what others define may stand behind the first dot
        parts = [part for part in parts if "_" in part.strip("_") or re.search("[a-z][A-Z]", part)]
    return None if all(part in identifiers() for part in parts) else "no code has this name"


def _module(parts: list[str]) -> str | None:
    """The file of a module, None: there is none; a folder without `__init__` is one too."""
    base = ROOT.joinpath(*parts)
    for candidate in (base.with_suffix(".py"), base / "__init__.py", base):
        if candidate.exists():
            return str(candidate.relative_to(ROOT))
    return None


@cache
def _defined(module: str) -> frozenset[str]:
    """What a module defines or imports at its top, and what its classes hold."""
    if not is_python(module):
        return frozenset()
    return frozenset(name for node in nodes(module) for name in _names(node))


def _names(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Name(id=name, ctx=ast.Store()):
            yield name
        case ast.alias(name=name, asname=other):
            yield other or name


def _run_module_fault(name: str, _: Passage) -> str | None:
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        found = None
    if found is None:
        return "no such module"
    if name.split(".", maxsplit=1)[0] not in PACKAGES:
        return None
    source = content(_module(name.split(".")) or "")
    runs = importlib.util.find_spec(f"{name}.__main__") if found.submodule_search_locations else "__main__" in source
    return None if runs else "does nothing when it is run"


# --- commands ---


@cache
def _commands(name: str) -> dict[str, frozenset[str]]:
    """The commands of a program, and the options of each."""
    group = get_command(program if name == "agent-runs" else stack)
    assert isinstance(group, TyperGroup)
    return {
        command: frozenset(option for parameter in known.params for option in parameter.opts) | {"--help"}
        for command, known in group.commands.items()
    }


@cache
def _dev_commands() -> frozenset[str]:
    """The commands that `./dev --help` would show: those in its docstring."""
    return frozenset(re.findall(r"(?m)^ {4}\./dev (\w+)", ast.get_docstring(tree("dev")) or ""))


def _dev_fault(name: str, _: Passage) -> str | None:
    command, *words = name.split()
    if command in _commands("./dev"):
        return _options_fault(command, _commands("./dev")[command], words)
    if command in _commands("agent-runs"):
        return _options_fault(command, _commands("agent-runs")[command], words)
    return None if command in _dev_commands() else "./dev has no such command"


def _program_fault(name: str, _: Passage) -> str | None:
    command, *words = name.split()
    if command not in _commands("agent-runs"):
        return "agent-runs has no such command"
    return _options_fault(command, _commands("agent-runs")[command], words)


def _options_fault(command: str, known: frozenset[str], words: list[str]) -> str | None:
    unknown = [word for word in words if re.fullmatch(r"--[a-z][a-z-]*", word) and word not in known]
    return f"{command} has no option {unknown[0]}" if unknown else None


# --- settings and tests ---


def _setting_fault(name: str, _: Passage) -> str | None:
    return None if name in KNOWN else "no such setting"


@cache
def _tests() -> frozenset[str]:
    return frozenset(
        name
        for path in files()
        if path.startswith("tests/") and is_python(path)
        for name in (*_defined(path), Path(path).stem)
    )


def _test_fault(name: str, _: Passage) -> str | None:
    return None if name in _tests() else "no such test"


_WORDS = r"(?:(?!\s{3}|[`|#;&()])[^\n])*"
"""The rest of a command line."""

_FILE: Final = rf"[\w-]+\.(?:{'|'.join(SUFFIXES)})"

KINDS: Final[tuple[tuple[re.Pattern[str], Callable[[str, Passage], str | None]], ...]] = (
    (re.compile(rf"(?<![\w/.@$}}:-])((?:{'|'.join(FOLDERS)})/[\w./*-]*)(?![\w{{<])"), _path_fault),
    (re.compile(r"\]\((?!https?:)([^)\s]+)\)"), _link_fault),
    (re.compile(rf"(?<![\w/.*@$}}-])((?:[\w-]+/)*{_FILE})(?![\w/])"), _file_name_fault),
    (re.compile(r"`([\w-]+(?:/[\w-]+)*/)`"), _folder_fault),
    (re.compile(rf"(?<![\w/.@-])((?:{'|'.join(PACKAGES)})(?:\.\w+)+)(?![\w/])"), _dotted_fault),
    (re.compile(r"`([a-z_]+(?:\.[a-z_]+)+)(?:\(\))?`"), _short_fault),
    (re.compile(r"python3? -m (\w[\w.]*\b)(?!\.?<)"), _run_module_fault),
    (re.compile(rf"(?<![\w/])\./dev ([a-z]{_WORDS})"), _dev_fault),
    (re.compile(rf"(?m)(?:`|^\s*|Example: |&& )agent-runs ([a-z]{_WORDS})"), _program_fault),
    (re.compile(rf"\b({PREFIX}[A-Z_]*[A-Z])\b"), _setting_fault),
    (re.compile(r"`(\w+(?:\.\w+)*)(?:\(\))?`"), _identifier_fault),
    (re.compile(r"`([a-z]\w*)`"), _member_fault),
    (re.compile(r"`(test_\w+)`"), _test_fault),
)
