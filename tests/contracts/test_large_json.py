"""Large JSON is read as `json.loads` reads it, value by value, and not at all when it has millions of values."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_runs.contracts import large_json
from agent_runs.contracts.large_json import LARGE, MAX_VALUES, TooManyValues, load_json

TEXTS = st.text(st.sampled_from('a"\\/\n\t\x01\u20ac\U0001f600\ud83d\ude00'), max_size=40)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=30,
)


@given(value=VALUES, ascii_only=st.booleans())
@settings(max_examples=300)
def test_a_large_text_is_read_as_any_other(value: Any, ascii_only: bool) -> None:
    text = json.dumps([value], ensure_ascii=ascii_only)
    assert load_json(text + " " * LARGE) == json.loads(text)


@given(text=st.text(st.sampled_from('[]{}",:\\ud83e0x1.-n \n'), max_size=60))
@settings(max_examples=500)
def test_what_is_no_json_is_refused_as_anywhere(text: str) -> None:
    try:
        expected = json.loads(text, parse_constant=lambda _: None)
    except ValueError:
        with pytest.raises(json.JSONDecodeError):
            load_json(text + " " * LARGE)
    else:
        assert load_json(text + " " * LARGE) == expected


@pytest.mark.parametrize("count", [0, 1, 2, 511, 512, 513])
def test_a_long_string_is_cut_at_no_escape(count: int) -> None:
    for part in ('\U0001f600\\"\n', "\x1b[1m\U0001f600", "\x1b\n", "\xe9\U0001f600"):
        value = "x" * count + part * LARGE
        for ascii_only in (True, False):
            assert load_json(json.dumps(value, ensure_ascii=ascii_only)) == value


def test_millions_of_values_are_refused_before_they_are_in_memory() -> None:
    assert load_json("[" + "[]," * (MAX_VALUES - 3) + "[]]") == [[]] * (MAX_VALUES - 2)
    for values in ("[],", "0,", "{},", '"",'):
        with pytest.raises(TooManyValues):
            load_json(f"[{values * (4 * LARGE)}0]")


@pytest.mark.parametrize("text", ["[" * LARGE * 2, '{"a":' * LARGE])
def test_deep_nesting_is_refused(text: str) -> None:
    with pytest.raises(RecursionError):
        load_json(text)


def test_a_number_of_millions_of_digits_is_refused() -> None:
    for number in ("1" * LARGE * 2, "-0." + "1" * LARGE * 2):
        with pytest.raises(ValueError, match="digits"):
            load_json(f"[{number}]")


def test_a_small_text_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(large_json, "_LargeDecoder")
    assert load_json("[1,NaN]") == [1, None]
    with pytest.raises(NameError):
        load_json(" " * LARGE + "[1]")
