"""The words of this checkout are those of its four fields."""

from tests.prose.words import EVENT, UNWANTED, events, unused, unwanted


def test_no_word_needs_a_translation() -> None:
    found = list(unwanted())
    assert not found, "Say it in other words, or allow it in tests/prose/words.py:\n" + "\n".join(found)


def test_what_is_allowed_occurs() -> None:
    assert not list(unused())


def test_a_word_is_found_in_an_identifier_and_not_inside_another_word() -> None:
    text = "the_story myStory mend lingerSec; history, recommend, discard, cardinal, impatient"
    assert [match[0] for match in UNWANTED.finditer(text)] == ["story", "Story", "mend", "linger"]


def test_log_events_are_an_object_and_a_verb_in_the_past_tense() -> None:
    found = [f"{place}: {event}" for place, event in events() if not EVENT.fullmatch(event)]
    assert not found, "Name these `object.verb`, as `watch.relisted`:\n" + "\n".join(found)
