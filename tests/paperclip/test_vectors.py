from tests.paperclip.vectors import FILE, vectors


def test_the_vectors_for_the_other_language_are_what_python_makes_today() -> None:
    assert FILE.read_text() == vectors(), "stale: run `python -m tests.paperclip.vectors`, then the adapter's tests"
