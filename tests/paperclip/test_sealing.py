import base64
import json
import random
import stat
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joserfc import jwe
from joserfc.jwk import ECKey, OKPKey, RSAKey

from agent_runs.contracts.errors import InvalidRequest, SealedFieldUnreadable
from agent_runs.contracts.request import PromptSource, Secrets
from agent_runs.paperclip.preparation import prepare
from agent_runs.paperclip.sealing import (
    OPENED_LIMIT,
    Opener,
    PublicKey,
    Sealer,
    SealingKey,
    UnusableKey,
    load_or_create,
    parse_keys,
)
from tests.paperclip.contexts import FIXTURES, KEY, OPENER, SEALER, captured

VECTORS = json.loads((FIXTURES / "sealing" / "vectors.json").read_text())
SEALED_BY_THE_ADAPTER = json.loads((FIXTURES / "sealing" / "adapter.json").read_text())["vectors"]
CANARY = "canary-7a"
TEXT = st.text(max_size=200)
SECRETS = st.fixed_dictionaries(
    {
        "run_id": st.text(min_size=1, max_size=40),
        "auth_token": st.none() | TEXT,
        "env": st.dictionaries(TEXT, TEXT, max_size=5),
        "paperclip_env": st.dictionaries(TEXT, TEXT, max_size=5),
        "mcp_servers": st.dictionaries(
            TEXT, st.dictionaries(TEXT, TEXT | st.booleans() | st.none(), max_size=3), max_size=3
        ),
    }
).map(Secrets.model_validate)
PROMPTS = st.fixed_dictionaries(
    {
        "run_id": st.text(min_size=1, max_size=40),
        "wake": st.fixed_dictionaries({"fresh": TEXT, "resumed": TEXT}),
        "task_markdown": TEXT,
        "prompt_template": st.none() | TEXT,
        "context": st.dictionaries(TEXT, TEXT | st.integers(-(2**53), 2**53) | st.lists(TEXT, max_size=3), max_size=3),
    }
).map(PromptSource.model_validate)


def unreadable(text: str, run_id: str | None = "run-1", opener: Opener = OPENER) -> str:
    with pytest.raises(SealedFieldUnreadable) as caught:
        opener.secrets(text, run_id)
    assert CANARY not in f"{caught.value} {caught.value.details} {caught.value.__cause__}"
    assert caught.value.__context__ is None or caught.value.__suppress_context__  # else Temporal sends it along
    return caught.value.message


@given(content=SECRETS)
@settings(deadline=None)
def test_sealed_secrets_open_unchanged(content: Secrets) -> None:
    assert OPENER.secrets(SEALER.seal(content), content.run_id) == content


@given(content=PROMPTS)
@settings(deadline=None)
def test_a_sealed_prompt_opens_unchanged(content: PromptSource) -> None:
    assert OPENER.prompt(SEALER.seal(content), content.run_id) == content


@pytest.mark.parametrize("vector", VECTORS["vectors"] + SEALED_BY_THE_ADAPTER, ids=lambda vector: vector["name"])
def test_a_field_that_the_plugin_sealed_is_opened(vector: dict[str, Any]) -> None:
    opener = Opener([SealingKey.from_jwk(jwk) for jwk in VECTORS["keys"]])
    opens = {"secrets": opener.secrets, "prompt": opener.prompt}[vector["kind"]]
    assert opens(vector["sealed"], vector["runId"]).model_dump(mode="json", exclude_defaults=True) == vector["opened"]


def test_the_format_is_the_documented_one() -> None:
    sealed = SEALER.seal(Secrets(run_id="run-1", env={"A": CANARY}))
    protected = sealed.split(".")[0]
    header = json.loads(base64.urlsafe_b64decode(protected + "=" * (-len(protected) % 4)))
    assert header.pop("epk")["crv"] == "P-256"
    assert header == {
        "alg": "ECDH-ES",
        "enc": "A256GCM",
        "kid": KEY.kid,
        "typ": "agent-runs.secrets",
        "cty": "json+deflate",
    }
    packed = jwe.decrypt_compact(sealed, KEY.key, algorithms=["ECDH-ES", "A256GCM"]).plaintext
    assert packed is not None
    assert json.loads(zlib.decompress(packed, wbits=-15)) == {"runId": "run-1", "env": {"A": CANARY}}


def test_a_request_is_opened_with_its_own_run_id() -> None:
    request = prepare(captured("ctx-1"), SEALER)
    assert OPENER.secrets(request).run_id == OPENER.prompt(request).run_id == request.run_id


def test_a_field_of_another_run_is_refused() -> None:
    assert "another run" in unreadable(SEALER.seal(Secrets(run_id="run-2", auth_token=CANARY)))


def test_without_a_run_id_nothing_is_opened() -> None:
    assert "another run" in unreadable(SEALER.seal(Secrets(run_id="run-1", auth_token=CANARY)), None)


def test_a_prompt_is_not_opened_as_secrets() -> None:
    assert "something else" in unreadable(SEALER.seal(PromptSource(run_id="run-1", task_markdown=CANARY)))


def test_an_unknown_key_is_named_as_the_cause() -> None:
    sealed = Sealer(SealingKey.generate().public).seal(Secrets(run_id="run-1", auth_token=CANARY))
    assert "key that this worker does not hold" in unreadable(sealed)


def test_a_field_with_any_changed_character_is_refused() -> None:
    sealed = SEALER.seal(Secrets(run_id="run-1", auth_token=CANARY))
    for at in range(0, len(sealed), 7):
        changed = "B" if sealed[at] != "B" else "C"
        unreadable(sealed[:at] + changed + sealed[at + 1 :])


@pytest.mark.parametrize("text", ["", ".", "....", "sealed", "ey.ey.ey.ey.ey", "é.é.é.é.é", "W10....", "bnVsbA...."])
def test_text_that_is_no_sealed_field_is_refused(text: str) -> None:
    unreadable(text)


@pytest.mark.parametrize("opened", [b"", b"not json", b"[]", b"{}", b'{"runId": 5}', CANARY.encode()])
def test_a_sealed_field_with_other_content_is_refused(opened: bytes) -> None:
    deflate = zlib.compressobj(wbits=-15)
    unreadable(_sealed(deflate.compress(opened) + deflate.flush()))


def test_a_sealed_field_that_is_not_compressed_is_refused() -> None:
    unreadable(_sealed(CANARY.encode()))


def test_a_field_that_unpacks_beyond_the_limit_is_refused() -> None:
    deflate = zlib.compressobj(level=9, wbits=-15)
    unreadable(_sealed(deflate.compress(b" " * (OPENED_LIMIT + 1)) + deflate.flush()))


def test_another_algorithm_is_refused_even_with_our_key() -> None:
    unreadable(_sealed(b"{}", enc="A128GCM"))


def _sealed(packed: bytes, enc: str = "A256GCM") -> str:
    header = {"alg": "ECDH-ES", "enc": enc, "kid": KEY.kid, "typ": "agent-runs.secrets", "cty": "json+deflate"}
    return jwe.encrypt_compact(header, packed, KEY.public.key, algorithms=["ECDH-ES", "A256GCM", "A128GCM"])


def test_a_field_too_large_for_a_history_is_refused_before_it_is_sent() -> None:
    noise = base64.b85encode(random.Random(1).randbytes(600_000)).decode()
    with pytest.raises(InvalidRequest, match="too large"):
        SEALER.seal(PromptSource(run_id="run-1", task_markdown=noise))


def test_a_wake_of_a_hundred_kilobytes_can_be_sealed() -> None:
    noise = base64.b85encode(random.Random(1).randbytes(100_000)).decode()
    content = PromptSource(run_id="run-1", task_markdown=noise)
    assert OPENER.prompt(SEALER.seal(content), "run-1") == content


# keys


def test_an_old_key_still_opens_during_a_rotation() -> None:
    old, new = SealingKey.generate(), SealingKey(OKPKey.generate_key("X25519", private=True))
    text = json.dumps({"keys": [json.loads(new.to_jwk()), json.loads(old.to_jwk())]})
    keys = parse_keys(text)
    assert keys[0].kid == new.kid
    content = Secrets(run_id="run-1")
    for key in (old, new):
        assert Opener(keys).secrets(Sealer(key.public).seal(content), "run-1") == content


def test_the_public_half_has_nothing_private() -> None:
    key = SealingKey.generate()
    assert set(json.loads(key.public.to_jwk())) == {"kty", "crv", "x", "y", "kid"}
    assert PublicKey.from_jwk(key.to_jwk()).to_jwk() == key.public.to_jwk()
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


def test_a_missing_key_file_is_created_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "state" / "sealing-key.json"
    (key,) = load_or_create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [key.kid for key in load_or_create(path)] == [key.kid]
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_processes_that_start_together_share_one_key(tmp_path: Path) -> None:
    path = tmp_path / "sealing-key.json"
    with ThreadPoolExecutor(8) as together:
        kids = list(together.map(lambda _: load_or_create(path)[0].kid, range(16)))
    assert len(set(kids)) == 1


def test_in_production_no_key_is_created(tmp_path: Path) -> None:
    with pytest.raises(UnusableKey, match="AGENT_RUNS_SEALING_KEY_FILE"):
        load_or_create(tmp_path / "key.json", create=False)
    assert not (tmp_path / "key.json").exists()
