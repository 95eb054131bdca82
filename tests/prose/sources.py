"""The files of this checkout, and the text in them that is written for people."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]

FOREIGN: Final = frozenset({"__pycache__", "node_modules", "dist", "fixtures"})
"""Folders of files that nobody here wrote: installed, built or recorded."""

RECORDED: Final = (".md", ".json", ".jsonl", ".lock", ".txt")
"""Endings of files whose words may be those of an earlier day."""

SAMPLES: Final = "tests/prose/test_names.py"
"""The file that names what is not there on purpose."""

_TYPESCRIPT: Final = re.compile(r"/\*.*?\*/|(?<![:\"'`/])//[^\n]*", re.DOTALL)
_HASH: Final = re.compile(r"(?m)(?<!\S)#[^\n]*")
_COMMENTS: Final = {
    **dict.fromkeys((".ts", ".mjs", ".css"), _TYPESCRIPT),
    **dict.fromkeys((".sh", ".yaml", ".toml", ".Dockerfile", ""), _HASH),
}


@dataclass(frozen=True)
class Passage:
    """A piece of text for people: a document, a docstring, a comment or a message.

    Attributes:
        path: of its file, from the root of the checkout.
        line: where it begins, counted from 1.
    """

    path: str
    line: int
    text: str

    def place(self, offset: int) -> str:
        """`path:line` of a position in the text."""
        return f"{self.path}:{self.line + self.text.count(chr(10), 0, offset)}"


@cache
def files() -> tuple[str, ...]:
    """Paths of our own files, from the root of the checkout."""
    return tuple(sorted(_walk(ROOT)))


def _walk(folder: Path) -> Iterator[str]:
    for entry in folder.iterdir():
        if entry.is_dir():
            if entry.name == ".ci" or not (entry.name.startswith(".") or entry.name in FOREIGN):
                yield from _walk(entry)
        elif entry.name == ".gitignore" or not entry.name.startswith("."):
            yield str(entry.relative_to(ROOT))


@cache
def content(path: str) -> str:
    try:
        return (ROOT / path).read_text()
    except UnicodeDecodeError:
        return ""


def is_python(path: str) -> bool:
    """Whether a file is Python's; `./dev` has no suffix."""
    return path.endswith(".py") or path == "dev"


@cache
def tree(path: str) -> ast.Module:
    return ast.parse(content(path))


@cache
def nodes(path: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree(path)))


@cache
def comments(path: str) -> tuple[Passage, ...]:
    if is_python(path):
        tokens = tokenize.generate_tokens(io.StringIO(content(path)).readline)
        return tuple(Passage(path, token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT)
    text, pattern = content(path), _COMMENTS.get(Path(path).suffix)
    found = pattern.finditer(text) if pattern else ()
    return tuple(Passage(path, text.count("\n", 0, match.start()) + 1, match[0]) for match in found)


@cache
def passages() -> tuple[Passage, ...]:
    """Every document, docstring and comment of the checkout, and every string of the program and its stack."""
    return tuple(passage for path in files() for passage in _passages(path))


def _passages(path: str) -> Iterator[Passage]:
    if path.endswith(".md"):
        yield Passage(path, 1, content(path))
        return
    yield from comments(path)
    if is_python(path):
        yield from docstrings(path) if path.startswith("tests/") else _strings(path)


@cache
def docstrings(path: str) -> tuple[Passage, ...]:
    """Every string that stands alone: of modules, classes, functions, and behind attributes."""
    return tuple(
        Passage(path, node.lineno, node.value.value)
        for node in nodes(path)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    )


def _strings(path: str) -> Iterator[Passage]:
    for node in nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield Passage(path, node.lineno, node.value)


@cache
def identifiers(folder: str = "") -> frozenset[str]:
    """Every word that occurs in the code of a folder: not in a comment, a docstring, a document or recorded data."""
    code = (path for path in files() if path.startswith(folder) and not path.endswith(RECORDED) and path != SAMPLES)
    return frozenset(word for path in code for word in _words(path))


@cache
def _words(path: str) -> frozenset[str]:
    names = f"{Path(path).name} {Path(path).stem} {' '.join(Path(path).parts)}"
    if not is_python(path):
        pattern = _COMMENTS.get(Path(path).suffix)
        code = pattern.sub("", content(path)) if pattern else content(path)
        return frozenset(re.findall(r"\w+", f"{names} {code}"))
    prose = {(passage.line, passage.text) for passage in docstrings(path)}
    values = ((getattr(node, "lineno", 0), value) for node in nodes(path) for value in vars(node).values())
    code = " ".join(value for line, value in values if isinstance(value, str) and (line, value) not in prose)
    return frozenset(re.findall(r"\w+", f"{names} {code}"))
