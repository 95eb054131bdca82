import json

from hypothesis import given
from hypothesis import strategies as st

from agent_runs.paperclip.javascript import length, number, shorten, stringify, trim, well_formed

NUMBERS: list[tuple[float, str]] = [
    (0, "0"),
    (-0.0, "0"),
    (1.0, "1"),
    (-1.5, "-1.5"),
    (0.1, "0.1"),
    (1e20, "100000000000000000000"),
    (1e21, "1e+21"),
    (1.5e21, "1.5e+21"),
    (123456789012345680000, "123456789012345680000"),
    (12345678901234567890, "12345678901234567000"),
    (0.000001, "0.000001"),
    (0.0000015, "0.0000015"),
    (1e-7, "1e-7"),
    (-1.25e-9, "-1.25e-9"),
    (5e-324, "5e-324"),
    (1.7976931348623157e308, "1.7976931348623157e+308"),
    (10**400, "Infinity"),
    (-(10**400), "-Infinity"),
    (float("nan"), "NaN"),
]


def test_numbers_are_written_as_javascript_writes_them() -> None:
    assert [number(value) for value, _ in NUMBERS] == [text for _, text in NUMBERS]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_survives_a_round_trip(value: float) -> None:
    assert float(number(value)) == value


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(JSON)
def test_json_survives_a_round_trip(value: object) -> None:
    assert json.loads(stringify(value), parse_int=float) == value


def test_json_is_compact_and_keeps_what_is_not_ascii() -> None:
    assert stringify({"a": [1.0, None, True], "é": "𝄞\n\u007f\ud83d"}) == '{"a":[1,null,true],"é":"𝄞\\n\u007f\\ud83d"}'
    assert stringify([float("nan"), float("inf")]) == "[null,null]"


def test_length_counts_utf_16_units() -> None:
    assert [length(text) for text in ("", "é", "𝄞", "a\ud83d")] == [0, 1, 2, 2]


@given(st.text(), st.integers(1, 20))
def test_a_shortened_text_fits_and_stays_well_formed(text: str, limit: int) -> None:
    shortened = shorten(text, limit)
    assert length(shortened) <= limit
    assert shortened == text or (text.startswith(shortened[:-1]) and shortened.endswith("…"))
    assert well_formed(shortened) == shortened


def test_trim_knows_javascripts_white_space_only() -> None:
    assert trim("\ufeff\u00a0\u2028 a \u3000\n") == "a"
    assert trim("\x1c\x85a\x1f") == "\x1c\x85a\x1f"


def test_lone_surrogates_are_replaced() -> None:
    assert well_formed("a\ud83db") == "a\ufffdb"
