import base64
import json
import random
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwe
from joserfc.jwk import ECKey, OKPKey, RSAKey

from agent_runs.contracts.errors import InvalidRequest, SealedFieldUnreadable
from agent_runs.contracts.request import TEXT_LIMIT, TOKEN_LIMIT
from agent_runs.contracts.start import Binding, HostTexts, SealedJoin, SealedRun
from agent_runs.contracts.updates import JOIN_LIMIT
from agent_runs.files import UnusableKey
from agent_runs.paperclip.sealing import (
    OPENED_LIMIT,
    Opener,
    PublicKey,
    Sealer,
    SealingKey,
    load_or_create,
    parse_keys,
    public_key,
)
from tests.paperclip.contexts import KEY, OPENER, SEALER

CANARY = "canary-7a"
USE = Binding(purpose="run", workflow_id="agent-run:ada", company_id="acme", run_id="run-1", task="task")
TEXT = st.text(max_size=200)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
HOSTS = st.fixed_dictionaries(
    {
        "wake_prompt": st.fixed_dictionaries({"fresh": TEXT, "resumed": TEXT}),
        "instructions": st.none() | TEXT,
        "skills": st.none() | st.dictionaries(TEXT, TEXT, max_size=3),
        "notes": st.lists(TEXT, max_size=3),
    }
).map(HostTexts.model_validate)


def sealed(context: dict[str, Any] | None = None, sealer: Sealer = SEALER, **use: str | None) -> str:
    """A context that is sealed for the usual use, except where `use` says otherwise."""
    return sealer.seal(SealedRun(binding=USE.model_copy(update=use), context=context or {"authToken": CANARY}))


def test_a_join_has_room_for_two_of_the_longest_tokens() -> None:
    token, other = (random.Random(n).randbytes(TOKEN_LIMIT // 2).hex() for n in range(2))
    use = USE.model_copy(update={"purpose": "join", "task": "t" * TEXT_LIMIT})
    assert len(SEALER.seal(SealedJoin(binding=use, auth_token=token, tools_token=other))) <= JOIN_LIMIT


def unreadable(text: str, opener: Opener = OPENER) -> str:
    with pytest.raises(SealedFieldUnreadable) as caught:
        opener.open(text, SealedRun, USE)
    assert CANARY not in f"{caught.value} {caught.value.details} {caught.value.__cause__}"
    assert caught.value.__context__ is None or caught.value.__suppress_context__  # else Temporal sends it along
    return caught.value.message


@given(context=st.dictionaries(TEXT, ANYTHING, max_size=5), host=HOSTS)
def test_a_sealed_context_opens_unchanged(context: dict[str, Any], host: HostTexts) -> None:
    content = SealedRun(binding=USE, context=context, host=host)
    assert OPENER.open(SEALER.seal(content), SealedRun, USE) == content


def test_half_a_character_survives() -> None:
    content = {"name": "half \ud83d emoji"}
    assert OPENER.open(sealed(content), SealedRun, USE).context == content


def test_the_format_is_the_documented_one() -> None:
    text = sealed({"a": CANARY})
    protected = text.split(".")[0]
    header = json.loads(base64.urlsafe_b64decode(protected + "=" * (-len(protected) % 4)))
    assert header.pop("epk")["crv"] == "P-256"
    assert header == {
        "alg": "ECDH-ES",
        "enc": "A256GCM",
        "kid": KEY.kid,
        "typ": "agent-runs.run",
        "cty": "json+deflate",
    }
    packed = jwe.decrypt_compact(text, KEY.key, algorithms=["ECDH-ES", "A256GCM"]).plaintext
    assert packed is not None
    assert json.loads(zlib.decompress(packed, wbits=-15)) == {
        "binding": {
            "purpose": "run",
            "workflowId": "agent-run:ada",
            "companyId": "acme",
            "runId": "run-1",
            "task": "task",
        },
        "context": {"a": CANARY},
    }


@pytest.mark.parametrize(
    ("use", "named"),
    [
        ({"workflow_id": "agent-run:another"}, "another agent's workflow"),
        ({"company_id": "another"}, "another company"),
        ({"run_id": "run-2"}, "another run"),
        ({"task": "another"}, "another task"),
        ({"task": None}, "another task"),
        ({"purpose": "join"}, "another purpose"),
        ({"purpose": "check"}, "another purpose"),
        ({"run_id": "run-2", "company_id": "another"}, "another company and another run"),
    ],
)
def test_what_was_sealed_for_another_use_is_refused_and_the_use_is_named(use: dict[str, Any], named: str) -> None:
    assert named in unreadable(sealed(**use))


def test_a_purpose_that_only_the_header_names_is_refused() -> None:
    binding = USE.model_copy(update={"purpose": "join"})
    text = json.dumps(SealedRun(binding=binding, context={}).model_dump())
    deflate = zlib.compressobj(wbits=-15)
    assert "another purpose" in unreadable(_sealed(deflate.compress(text.encode()) + deflate.flush()))


def test_what_is_no_json_is_refused_before_it_is_sent() -> None:
    with pytest.raises(InvalidRequest, match="must be JSON"):
        sealed({"clock": object()})


def test_an_unknown_key_is_named_as_the_cause() -> None:
    assert "key that this worker does not hold" in unreadable(sealed(sealer=Sealer(SealingKey.generate().public)))


def test_a_text_with_any_changed_character_is_refused() -> None:
    text = sealed()
    for at in range(0, len(text), 7):
        changed = "B" if text[at] != "B" else "C"
        unreadable(text[:at] + changed + text[at + 1 :])


@pytest.mark.parametrize("text", ["", ".", "....", "sealed", "ey.ey.ey.ey.ey", "é.é.é.é.é", "W10....", "bnVsbA...."])
def test_text_that_was_never_sealed_is_refused(text: str) -> None:
    unreadable(text)


@pytest.mark.parametrize("opened", [b"", b"not json", b"[]", b"{}", b'{"binding": 5}', b"[" * 100_000, CANARY.encode()])
def test_a_sealed_text_with_other_content_is_refused(opened: bytes) -> None:
    deflate = zlib.compressobj(wbits=-15)
    unreadable(_sealed(deflate.compress(opened) + deflate.flush()))


def test_a_sealed_text_that_is_not_compressed_is_refused() -> None:
    unreadable(_sealed(CANARY.encode()))


def test_a_text_that_unpacks_beyond_the_limit_is_refused() -> None:
    deflate = zlib.compressobj(level=9, wbits=-15)
    unreadable(_sealed(deflate.compress(b" " * (OPENED_LIMIT + 1)) + deflate.flush()))


def test_another_algorithm_is_refused_even_with_our_key() -> None:
    unreadable(_sealed(b"{}", enc="A128GCM"))


def _sealed(packed: bytes, enc: str = "A256GCM") -> str:
    header = {"alg": "ECDH-ES", "enc": enc, "kid": KEY.kid, "typ": "agent-runs.run", "cty": "json+deflate"}
    return jwe.encrypt_compact(header, packed, KEY.public.key, algorithms=["ECDH-ES", "A256GCM", "A128GCM"])


def noise(size: int) -> str:
    """Text that does not compress."""
    return base64.b85encode(random.Random(1).randbytes(size)).decode()


def test_a_wake_too_large_for_a_history_is_refused_before_it_is_sent() -> None:
    with pytest.raises(InvalidRequest, match="too large"):
        sealed({"task": noise(1_000_000)})


def test_a_wake_of_half_a_megabyte_can_be_sealed() -> None:
    content = {"task": noise(500_000)}
    assert OPENER.open(sealed(content), SealedRun, USE).context == content


# keys


def test_an_old_key_still_opens_during_a_rotation() -> None:
    old, new = SealingKey.generate(), SealingKey(OKPKey.generate_key("X25519", private=True))
    text = json.dumps({"keys": [json.loads(new.to_jwk()), json.loads(old.to_jwk())]})
    keys = parse_keys(text)
    assert keys[0].kid == new.kid
    for key in (old, new):
        assert Opener(keys).open(sealed(sealer=Sealer(key.public)), SealedRun, USE).context == {"authToken": CANARY}


def test_the_public_half_has_nothing_private() -> None:
    key = SealingKey.generate()
    assert set(json.loads(key.public.to_jwk())) == {"kty", "crv", "x", "y", "kid"}
    for jwk in (key.to_jwk(), key.public.to_jwk()):
        assert PublicKey.from_jwk(jwk).to_jwk() == key.public.to_jwk()
    assert json.loads(key.to_jwk())["d"] not in repr(key)


@pytest.mark.parametrize(
    "text",
    [
        CANARY,
        "[]",
        "5",
        "{}",
        '{"keys": []}',
        '{"keys": ["x"]}',
        json.dumps({"kty": "EC", "crv": "P-256", "x": CANARY, "d": CANARY}),
        json.dumps({"kty": "EC", "crv": ["P-256"], "d": CANARY}),
        json.dumps(ECKey.generate_key("P-384", private=True).as_dict(private=True)),
        json.dumps(RSAKey.generate_key(2048, private=True).as_dict(private=True)),
        SealingKey.generate().public.to_jwk(),
    ],
)
def test_the_error_about_an_unusable_key_does_not_quote_it(text: str) -> None:
    with pytest.raises(UnusableKey) as caught:
        parse_keys(text)
    assert CANARY not in str(caught.value)
    assert caught.value.__cause__ is None


def test_processes_that_start_together_share_one_key(tmp_path: Path) -> None:
    path = tmp_path / "sealing-key.json"
    with ThreadPoolExecutor(8) as together:
        kids = list(together.map(lambda _: load_or_create(path)[0].kid, range(16)))
    assert len(set(kids)) == 1


def test_of_a_file_with_several_keys_the_first_one_seals_and_all_of_them_open(tmp_path: Path) -> None:
    path, current, old = tmp_path / "keys.json", SealingKey.generate(), SealingKey.generate()
    path.write_text(json.dumps({"keys": [json.loads(current.to_jwk()), json.loads(old.to_jwk())]}))
    assert public_key(path).kid == current.kid
    opener = Opener(load_or_create(path))
    for key in (current, old):
        assert opener.open(sealed(sealer=Sealer(key.public)), SealedRun, USE).context == {"authToken": CANARY}
