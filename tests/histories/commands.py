"""The fingerprint of the workflow: every call that makes a command, in the order of the source.

Temporal compares the commands of a replay with the recorded events one by one, so the order of commands must not change
for an open run. `commands.txt` has it as text, one line for each command, in the structure of the functions that make
them; a test compares. Names of variables, comments, durations and texts are not in it, because a replay ignores them.

`python -m tests.histories.commands` accepts the order of today; docs/replay.md says what has to be done before.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final, TypeAlias

import workflows

SOURCE: Final = Path(workflows.__file__).parent
SNAPSHOT: Final = Path(__file__).with_name("commands.txt")

COMMANDS: Final = frozenset(
    {
        *("sleep", "upsert_search_attributes", "upsert_memo", "patched", "deprecate_patch", "continue_as_new"),
        *("start_activity", "start_activity_class", "start_activity_method", "execute_activity"),
        *("execute_activity_class", "execute_activity_method", "start_local_activity", "execute_local_activity"),
        *("start_child_workflow", "execute_child_workflow", "get_external_workflow_handle"),
        *("get_external_workflow_handle_for", "create_nexus_client"),
    }
)
"""Functions of `temporalio.workflow` that make a command."""
TIMERS: Final = frozenset({"sleep", "wait_for", "timeout", "timeout_at"})
"""Functions of asyncio that become timers inside a workflow."""
HANDLERS: Final = frozenset({"update", "signal", "query", "run", "init", "defn", "validator"})

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Line:
    """One line of the fingerprint, at its depth."""

    depth: int
    text: str

    def __str__(self) -> str:
        return "    " * self.depth + self.text


def fingerprint(folder: Path = SOURCE) -> str:
    """The commands of every function of the workflow's modules, as text."""
    modules = [Module.read(file) for file in sorted(folder.glob("*.py"))]
    command_makers = _find_command_makers(modules)
    parts = []
    for module in modules:
        lines = [str(line) for line in module.lines(command_makers)]
        if lines:
            parts.append("\n".join([module.name, *lines]))
    return "\n\n".join(parts) + "\n"


@dataclass(frozen=True)
class Module:
    name: str
    tree: ast.Module
    constants: Mapping[str, str]
    imported: Mapping[str, str]
    """Modules of ours by the name they have here."""

    @classmethod
    def read(cls, file: Path) -> "Module":
        tree = ast.parse(file.read_text())
        _check_import_names(tree, file.name)
        return cls(file.name, tree, dict(_constants(tree)), dict(_imported(tree)))

    @property
    def functions(self) -> Iterator[tuple[str, Function]]:
        """Each with the name of its class before it."""
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name, node
            if isinstance(node, ast.ClassDef):
                for inner in node.body:
                    if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                        yield f"{node.name}.{inner.name}", inner

    def lines(self, command_makers: frozenset[str]) -> Iterator[Line]:
        """Its handlers, and the functions that make commands."""
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef) and (marks := self._marks(node.decorator_list)):
                yield Line(1, f"class {node.name}: {', '.join(marks)}")
        for name, function in self.functions:
            body = Reader(self, command_makers).body(function, 2) if lookup_name(name) in command_makers else []
            marks = self._marks(function.decorator_list)
            if body or marks:
                yield Line(1, f"{name}:" + (f" {', '.join(marks)}" if marks else ""))
                yield from body

    def _marks(self, decorators: Sequence[ast.expr]) -> list[str]:
        """The decorators that make a function or class part of the workflow's interface, with its name there."""
        return [mark for decorator in decorators if (mark := self._mark(decorator))]

    def _mark(self, decorator: ast.expr) -> str:
        call = decorator if isinstance(decorator, ast.Call) else None
        target = call.func if call else decorator
        if not isinstance(target, ast.Attribute) or target.attr not in HANDLERS:
            return ""
        named = [self.value(keyword.value) for keyword in call.keywords if keyword.arg == "name"] if call else []
        return " ".join([target.attr, *named])

    def value(self, expression: ast.expr) -> str:
        """The value of a constant, also an imported one; else the kind of the expression."""
        match expression:
            case ast.Constant(value=str(text)):
                return repr(text)
            case ast.Name(id=name) if name in self.constants:
                return repr(self.constants[name])
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module in self.imported:
                return repr(getattr(import_module(self.imported[module]), name))
        return type(expression).__name__


class Reader:
    """Reads one function in the order in which Python evaluates it."""

    def __init__(self, module: Module, command_makers: frozenset[str]) -> None:
        self.module = module
        self.command_makers = command_makers

    def body(self, function: Function, depth: int) -> list[Line]:
        """A function's lines, without a `return` at its very end."""
        lines = list(self.block(function.body, depth))
        return lines[:-1] if lines and lines[-1] == Line(depth, "return") else lines

    def block(self, body: Iterable[ast.AST], depth: int) -> Iterator[Line]:
        """Lines of statements or expressions; those without a command have none."""
        for node in body:
            yield from self.node(node, depth)

    def node(self, node: ast.AST, depth: int) -> Iterator[Line]:
        """Lines of one statement or expression."""
        match node:
            case ast.If() | ast.While() | ast.For() | ast.AsyncFor():
                yield from self._branches(node, depth)
            case ast.Try() | ast.TryStar():
                yield from self._try(node, depth)
            case ast.Match():
                yield from self.node(node.subject, depth)
                for case in node.cases:
                    yield from self._under("case:", case.body, depth)
            case ast.With() | ast.AsyncWith():
                yield from self.block([item.context_expr for item in node.items], depth)
                yield from self.block(node.body, depth)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from self._under(f"{node.name}:", node.body, depth)
            case ast.Return() | ast.Raise() | ast.Continue() | ast.Break():
                yield from self.block(ast.iter_child_nodes(node), depth)
                yield Line(depth, type(node).__name__.lower())
            case _:
                yield from self._expression(node, depth)

    def _expression(self, node: ast.AST, depth: int) -> Iterator[Line]:
        match node:
            case ast.IfExp():
                yield from self.node(node.test, depth)
                yield from self._under("if:", [node.body], depth)
                yield from self._under("else:", [node.orelse], depth)
            case ast.BoolOp():
                yield from self.node(node.values[0], depth)
                yield from self._under("perhaps:", node.values[1:], depth)
            case ast.Lambda():
                yield from self._under("later:", [node.body], depth)
            case ast.Await(value=ast.Call() as call):
                yield from self._call(call, depth, "await ")
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="asyncio"), attr="create_task"), args=[ast.Call() as call]
            ):
                yield from self._call(call, depth, "in a task of its own: ")
            case ast.Call():
                yield from self._call(node, depth)
            case ast.Name(ctx=ast.Load()) | ast.Attribute(ctx=ast.Load()) if self._ours(node):
                yield Line(depth, f"{self._ours(node)} as a value")
            case _:
                yield from self.block(ast.iter_child_nodes(node), depth)

    def _branches(self, node: ast.If | ast.While | ast.For | ast.AsyncFor, depth: int) -> Iterator[Line]:
        head = node.iter if isinstance(node, ast.For | ast.AsyncFor) else node.test
        yield from self.node(head, depth)
        yield from self._under(f"{type(node).__name__.lower()}:", node.body, depth)
        yield from self._under("else:", node.orelse, depth)

    def _try(self, node: ast.Try | ast.TryStar, depth: int) -> Iterator[Line]:
        yield from self._under("try:", node.body, depth)
        for handler in node.handlers:
            yield from self._under("except:", handler.body, depth)
        yield from self._under("else:", node.orelse, depth)
        yield from self._under("finally:", node.finalbody, depth)

    def _under(self, head: str, body: Iterable[ast.AST], depth: int) -> Iterator[Line]:
        lines = list(self.block(body, depth + 1))
        if lines:
            yield Line(depth, head)
            yield from lines

    def _call(self, call: ast.Call, depth: int, how: str = "") -> Iterator[Line]:
        """Its arguments are evaluated before it is called."""
        command = self._command(call)
        if not command:
            yield from self.node(call.func, depth)
        elif command == "cancel":
            yield from self.block(ast.iter_child_nodes(call.func), depth)
        yield from self.block(call.args, depth)
        yield from self.block([keyword.value for keyword in call.keywords], depth)
        if command:
            yield Line(depth, how + command)

    def _command(self, call: ast.Call) -> str:
        """The command or wait that a call is for Temporal; empty if it is neither."""
        match call.func:
            case ast.Attribute(value=ast.Name(id="workflow"), attr="wait_condition"):
                return "wait_condition with a timer" if self._timed(call) else "wait_condition"
            case ast.Attribute(value=ast.Name(id="workflow"), attr=name) if name in {"patched", "deprecate_patch"}:
                return f"{name} {self.module.value(call.args[0])}"
            case ast.Attribute(value=ast.Name(id="workflow"), attr=("wait" | "as_completed") as name):
                return name
            case ast.Attribute(value=ast.Name(id="workflow"), attr=("start_activity" | "execute_activity") as name):
                return f"{name} {ast.unparse(call.args[0]).rpartition('.')[2]}"
            case ast.Attribute(value=ast.Name(id="workflow"), attr=name) if name in COMMANDS:
                return name
            case ast.Attribute(value=ast.Name(id="asyncio"), attr=name) if name in TIMERS:
                return f"asyncio.{name}"
            case ast.Attribute(attr="cancel"):
                return "cancel"
        return self._ours(call.func)

    def _ours(self, function: ast.expr) -> str:
        """The name of a function of the workflow that makes commands."""
        match function:
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module in self.module.imported:
                return name if name in self.command_makers else ""
            case ast.Attribute(attr=name):
                return name if f".{name}" in self.command_makers else ""
            case ast.Name(id=name) if name in self.command_makers:
                return name
        return ""

    @staticmethod
    def _timed(call: ast.Call) -> bool:
        return len(call.args) > 1 or any(keyword.arg == "timeout" for keyword in call.keywords)


def _find_command_makers(modules: Sequence[Module]) -> frozenset[str]:
    """Functions that make commands, themselves or by what they call; of methods only the name, after a dot."""
    command_makers: frozenset[str] = frozenset()
    while True:
        found = frozenset(
            lookup_name(name)
            for module in modules
            for name, function in module.functions
            if not _only_leaves(Reader(module, command_makers).body(function, 0))
        )
        if found <= command_makers:
            return command_makers
        command_makers |= found


def lookup_name(name: str) -> str:
    """The name that calls are compared with: `f`, or `.f` for a method of any class."""
    owner, _, last = name.rpartition(".")
    return f".{last}" if owner else last


def _only_leaves(lines: Iterable[Line]) -> bool:
    return all(line.text in {"return", "raise", "continue", "break"} or line.text.endswith(":") for line in lines)


def _check_import_names(tree: ast.Module, file: str) -> None:
    """Checks that Temporal and asyncio are imported under their own names.

    Raises:
        ValueError: they have other names, so their calls would be overlooked.
    """
    for node in ast.walk(tree):
        names = node.names if isinstance(node, ast.Import | ast.ImportFrom) else []
        inner = isinstance(node, ast.ImportFrom) and node.module in {"temporalio.workflow", "asyncio"}
        if inner or any(alias.asname and alias.name in {"workflow", "asyncio"} for alias in names):
            raise ValueError(f"{file}: call `workflow.…` and `asyncio.…` by these names, or commands are overlooked")


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for name, value in _assigned(tree):
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield name, value.value


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        for found in node.body if isinstance(node, ast.With) else [node]:
            if isinstance(found, ast.ImportFrom) and found.module in {"agent_runs.contracts", "workflows"}:
                yield from ((alias.asname or alias.name, f"{found.module}.{alias.name}") for alias in found.names)


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, value


if __name__ == "__main__":
    SNAPSHOT.write_text(fingerprint())
