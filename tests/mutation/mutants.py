"""Lists the mutants of modules, and writes them; runs in the environment of the mutation tool, not in ours.

    python mutants.py list MODULE...     one mutant per line: MODULE OPERATOR OCCURRENCE LINE
    python mutants.py show               reads such lines; for each, in JSON, the text of the module with the mutation

The tool is Cosmic Ray, pinned in requirements.txt beside this file. Of its operators those are used that make another
program in most places: `==` to `is`, say, is mostly the same program, `|` in a type is no program, and the `*` before
keyword-only parameters counts as a multiplication.
"""

import json
import re
import sys
from pathlib import Path

from cosmic_ray import plugins
from cosmic_ray.ast import get_ast
from cosmic_ray.mutating import mutate_code

COMPARISONS = "Eq_NotEq|NotEq_Eq|Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt|Is_IsNot|IsNot_Is"
ARITHMETIC = "Add_Sub|Sub_Add"
OPERATORS = re.compile(
    rf"core/(ReplaceComparisonOperator_({COMPARISONS})|ReplaceBinaryOperator_({ARITHMETIC})|AddNot|NumberReplacer"
    r"|ReplaceAndWithOr|ReplaceOrWithAnd|ReplaceTrueWithFalse|ReplaceFalseWithTrue|ReplaceUnaryOperator_Delete_Not"
    r"|ReplaceBreakWithContinue|ReplaceContinueWithBreak|ZeroIterationForLoop)"
)


UNJUDGED = re.compile(r"_?[A-Z][A-Z_]*: Final = ([^{(]*|timedelta\([^()]*\))$|@")
"""Lines whose mutants mean nothing: limits, which may as well be one larger, and options of decorators."""


def positions(tree: object, name: str) -> list[int]:
    """The line of each occurrence of what the operator changes, in the tool's order."""
    operator = plugins.get_operator(name)()
    found: list[int] = []

    def visit(node: object) -> None:
        found.extend(start[0] for start, _ in operator.mutation_positions(node))
        for child in getattr(node, "children", ()):
            visit(child)

    visit(tree)
    return found


def list_mutants(module: str) -> None:
    text = Path(module).read_text()
    lines, tree = text.splitlines(), get_ast(text)
    for name in filter(OPERATORS.fullmatch, plugins.operator_names()):
        for occurrence, line in enumerate(positions(tree, name)):
            if not UNJUDGED.match(lines[line - 1]):
                print(module, name, occurrence, line)


def mutated(line: str) -> str:
    module, name, occurrence, _ = line.split()
    return mutate_code(Path(module).read_text(), plugins.get_operator(name)(), int(occurrence)) or ""


def main() -> None:
    command, *modules = sys.argv[1:]
    if command == "list":
        for module in modules:
            list_mutants(module)
    else:
        json.dump([mutated(line) for line in sys.stdin], sys.stdout)


if __name__ == "__main__":
    main()
