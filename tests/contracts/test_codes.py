from tests.contracts.codes import PAGE, failures, rewritten


def test_every_failure_has_a_row_with_its_next_step_in_the_documentation() -> None:
    page = PAGE.read_text()
    assert len(failures()) > 40
    assert page == rewritten(page), "run: python -m tests.contracts.codes"
