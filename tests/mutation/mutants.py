"""Lists the mutants of modules, and writes one of them; runs in the environment of the mutation tool, not in ours.

    python mutants.py list MODULE...              one mutant per line: MODULE OPERATOR OCCURRENCE LINE
    python mutants.py show MODULE OPERATOR N      the whole text of the module with this mutation

The tool is Cosmic Ray, pinned in requirements.txt beside this file. Of its operators those are used that make another
program in most places: `==` to `is`, say, is mostly the same program, `|` in a type is no program, and the `*` before
keyword-only parameters counts as a multiplication.
"""

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


UNJUDGED = re.compile(r"_?[A-Z][A-Z_]*: Final = [^{(]*$|@")
"""Lines whose mutants mean nothing: limits, which may as well be one larger, and options of decorators."""


def positions(path: Path, name: str) -> list[int]:
    """The line of each occurrence of what the operator changes, in the tool's order."""
    operator = plugins.get_operator(name)()
    found: list[int] = []

    def visit(node: object) -> None:
        found.extend(start[0] for start, _ in operator.mutation_positions(node))
        for child in getattr(node, "children", ()):
            visit(child)

    visit(get_ast(path.read_text()))
    return found


def main() -> None:
    command, *arguments = sys.argv[1:]
    if command == "list":
        for module in arguments:
            for name in filter(OPERATORS.fullmatch, plugins.operator_names()):
                lines = Path(module).read_text().splitlines()
                for occurrence, line in enumerate(positions(Path(module), name)):
                    if not UNJUDGED.match(lines[line - 1]):
                        print(module, name, occurrence, line)
    else:
        module, name, number = arguments
        sys.stdout.write(mutate_code(Path(module).read_text(), plugins.get_operator(name)(), int(number)) or "")


if __name__ == "__main__":
    main()
