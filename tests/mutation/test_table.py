"""What is mutated and what judges it is there: pytest fails without a test as well, and that would count as a kill."""

from tests.mutation.__main__ import ROOT, TESTS, explained_survivors


def test_every_module_and_every_test_of_it_is_there() -> None:
    named = {*TESTS, *(test for tests in TESTS.values() for test in tests)}
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_every_line_whose_mutants_are_explained_is_there() -> None:
    assert [(each.module, each.line) for each in explained_survivors() if each.is_stale] == []
