"""A small text from outside never becomes a large value, and the refusal says why."""

import json
import zlib
from collections.abc import Callable

import pytest
from joserfc import jwe

from agent_runs.agents import profile
from agent_runs.contracts.errors import InvalidRequest, SealedFieldUnreadable
from agent_runs.contracts.large_json import MAX_VALUES
from agent_runs.contracts.start import Binding, SealedRun
from agent_runs.job.policy import Policy
from agent_runs.plain_yaml import MAX_DEPTH, MAX_PLAIN, NoPlainYaml, load_yaml
from agent_runs.pod.sidecar.drivers.lines import Line, decoded, encoded
from tests.paperclip.contexts import KEY, OPENER
from tests.support.cases import case

ALIASES = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{each}: &a{each} [{', '.join([f'*a{each - 1}'] * 9)}]\n" for each in range(1, 12)
)
YAML = {
    "aliases": (ALIASES, "f, line 2: aliases (`*a0`) are not read"),
    "an alias of itself": ("a: &a [*a]\n", "f, line 1: aliases"),
    "flow depth": ("a: " + "[" * 5000 + "]" * 5000, "f, line 1: nested deeper than 32 levels"),
    "block depth": ("".join(f"{' ' * each}a:\n" for each in range(500)), "f, line 33: nested deeper than 32 levels"),
    "a long number": ("a: " + "1" * 5000, "f, line 1: a value without quotes has more than 1024 characters"),
    "a number of sixties": ("a: " + ":".join(["1"] * 5000), "f, line 1: a value without quotes"),
    "a number in quotes": ("a: !!int '" + ":".join(["1"] * 5000) + "'", "f, line 1: a value without quotes"),
    "a key twice": ("b: 1\na: 1\nb: 2\n", "f, line 3: `b` is there twice"),
    "a date that is none": ("a: 2026-99-99", "f: a value is no date or number"),
    "a long text": ("a: '" + "x" * 1_100_000 + "'", "f is larger than 1048576 characters"),
}
READERS: tuple[Callable[[str, str], object], ...] = (Policy.parse, profile.parse)


@pytest.mark.parametrize("name", YAML)
def test_yaml_that_grows_is_refused_by_line_and_reason(name: str) -> None:
    text, reason = YAML[name]
    for read in READERS:
        with case(read):
            with pytest.raises(InvalidRequest) as refused:
                read(text, "f")
            assert refused.value.message.startswith(reason)


def test_yaml_is_read_up_to_its_limits() -> None:
    deepest, longest = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1), "a" * MAX_PLAIN
    assert load_yaml(f"a: {longest}") == {"a": longest}
    load_yaml(f"a: {deepest}")
    for text, reason in ((f"a: {longest}a", "more than 1024 characters"), (f"a: [{deepest}]", "deeper than 32 levels")):
        with pytest.raises(NoPlainYaml, match=reason):
            load_yaml(text)


def test_a_sealed_context_that_grows_is_refused_with_the_reason() -> None:
    use = Binding(purpose="run", workflow_id="w", company_id="c", run_id="r", task=None)
    header = {"alg": "ECDH-ES", "enc": "A256GCM", "kid": KEY.kid, "typ": "agent-runs.run", "cty": "json+deflate"}
    texts = {
        "[" * 60_000 + "]" * 60_000: "what is sealed is nested too deeply",
        '{"a":' * 5000 + "1" + "}" * 5000: "what is sealed is nested too deeply",
        json.dumps({"a": [0] * MAX_VALUES}): f"what is sealed has more than {MAX_VALUES} values",
        json.dumps({f"{each}": 0 for each in range(MAX_VALUES)}): f"what is sealed has more than {MAX_VALUES} values",
        '{"a":' + "1" * 100_000 + "}": "the sealed text is damaged",
        '{"a":"' + "x" * 17 * 1024 * 1024 + '"}': "the sealed text is damaged",
    }
    for text, reason in texts.items():
        deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        packed = deflate.compress(text.encode()) + deflate.flush()
        sealed = jwe.encrypt_compact(header, packed, KEY.public.key, algorithms=["ECDH-ES", "A256GCM"])
        with case(text[:20]), pytest.raises(SealedFieldUnreadable, match=reason):
            OPENER.open(sealed, SealedRun, use)


def test_an_agents_line_with_a_number_that_is_none_of_jsons_is_left_out_by_name() -> None:
    for number in ("1e999", "-1e999"):
        part = decoded(f'{{"part":{number}}}')
        assert json.loads(encoded(Line("text", part), 1, "ses_1"))["type"] == "event_left_out"
    with pytest.raises(ValueError, match="digits"):
        decoded("1" * 100_000)
