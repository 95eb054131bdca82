import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from joserfc import jwt
from joserfc.jwk import OctKey

from agent_runs.contracts.identity import RunKey
from agent_runs.files import UnusableKey
from agent_runs.transcript.tokens import (
    AUDIENCE,
    SIGNING_ALGORITHM,
    TokenRefused,
    Tokens,
)

NOW = 1_800_000_000


def at(moment: float, key: OctKey | None = None) -> Tokens:
    return Tokens([key or KEY], clock=lambda: moment)


KEY = OctKey.generate_key(256)
RUN = RunKey(agent_id="ada", company_id="", run_id="run-1")


def test_a_token_names_its_run_and_its_expiry() -> None:
    grant = at(NOW).open(at(NOW).mint(RUN, timedelta(hours=1)))
    assert grant.run == RUN
    assert grant.expires_at == datetime.fromtimestamp(NOW + 3600, UTC)


def test_a_token_expires() -> None:
    token = at(NOW).mint(RUN, timedelta(hours=1))
    assert at(NOW + 3599).open(token).run == RUN
    with pytest.raises(TokenRefused, match="expired"):
        at(NOW + 3600).open(token)


def test_a_token_names_the_time_of_its_issue() -> None:
    assert at(NOW + 60).open(at(NOW).mint(RUN)).issued_at == datetime.fromtimestamp(NOW, UTC)


def test_no_token_outlives_the_transcripts() -> None:
    day = timedelta(days=1)
    short = Tokens([KEY], longest=day, clock=lambda: NOW)
    assert short.open(short.mint(RUN)).expires_at == datetime.fromtimestamp(NOW, UTC) + day
    by_others = at(NOW).mint(RUN)
    assert short.open(by_others).expires_at == datetime.fromtimestamp(NOW, UTC) + day
    with pytest.raises(TokenRefused, match="expired"):
        Tokens([KEY], longest=day, clock=lambda: NOW + 86_400).open(by_others)
    assert short.open(short.mint(RUN, timedelta(hours=1))).expires_at == datetime.fromtimestamp(NOW + 3600, UTC)


def test_a_token_of_another_key_is_refused() -> None:
    with pytest.raises(TokenRefused):
        at(NOW).open(at(NOW, OctKey.generate_key(256)).mint(RUN))


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_changed_token_is_refused(part: int) -> None:
    pieces = at(NOW).mint(RUN).split(".")
    pieces[part] = pieces[part][:-2] + ("AA" if not pieces[part].endswith("AA") else "BB")
    with pytest.raises(TokenRefused):
        at(NOW).open(".".join(pieces))


@pytest.mark.parametrize(
    "claims",
    [
        {"sub": "run-1", "exp": NOW + 60, "iat": NOW},
        {"sub": "run-1", "exp": NOW + 60, "aud": "agent-runs.other", "iat": NOW},
        {"sub": "run-1", "aud": AUDIENCE, "iat": NOW},
        {"sub": "run-1", "aud": AUDIENCE, "exp": "never", "iat": NOW},
        {"sub": 1, "aud": AUDIENCE, "exp": NOW + 60, "iat": NOW},
        {"sub": "run-1", "aud": AUDIENCE, "exp": 10**30, "iat": NOW},
        {"sub": "run-1", "aud": AUDIENCE, "exp": 10**12, "iat": NOW},
        {"aud": AUDIENCE, "exp": NOW + 60, "iat": NOW},
        {"sub": "run-1", "aud": AUDIENCE, "exp": NOW + 60},
        {"sub": "run-1", "aud": AUDIENCE, "exp": NOW + 60, "iat": NOW + 61},
        {"sub": "run-1", "aud": AUDIENCE, "exp": NOW + 60, "iat": -1},
        {"sub": "run-1", "aud": AUDIENCE, "exp": NOW + 60, "iat": "today"},
    ],
)
def test_a_token_for_something_else_is_refused(claims: dict[str, object]) -> None:
    token = jwt.encode({"alg": SIGNING_ALGORITHM}, claims, KEY, algorithms=[SIGNING_ALGORITHM])
    with pytest.raises(TokenRefused, match="something else"):
        at(NOW).open(token)


@pytest.mark.parametrize("token", ["", ".", "..", "a.b.c", "é", "x" * 100_000, "eyJ.eyJ.", "[" * 1500])
def test_text_that_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(TokenRefused):
        at(NOW).open(token)


@pytest.mark.parametrize("algorithm", ["none", "HS512", "RS256"])
def test_the_token_does_not_choose_the_algorithm(algorithm: str) -> None:
    body = at(NOW).mint(RUN).split(".")[1]
    header = base64.urlsafe_b64encode(json.dumps({"alg": algorithm}).encode()).rstrip(b"=")
    with pytest.raises(TokenRefused):
        at(NOW).open(f"{header.decode()}.{body}.")


def test_after_a_rotation_old_tokens_still_open(tmp_path: Path) -> None:
    old, new = OctKey.generate_key(256), OctKey.generate_key(256)
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [key.as_dict(private=True) for key in (new, old)]}))
    tokens = Tokens.load(path)
    before = Tokens([old]).mint(RUN)
    assert tokens.open(before).run == RUN
    assert Tokens([new]).open(tokens.mint(RUN)).run == RUN


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        '{"keys": []}',
        '{"kty": "oct", "k": "c2hvcnQ"}',
        '{"kty": "EC", "crv": "P-256", "k": "x"}',
    ],
)
def test_a_file_without_a_key_is_named_and_not_quoted(tmp_path: Path, text: str) -> None:
    path = tmp_path / "key.json"
    path.write_text(text)
    with pytest.raises(UnusableKey, match="at least 32 bytes") as refused:
        Tokens.load(path)
    assert "c2hvcnQ" not in str(refused.value)


def test_keys_do_not_show_in_a_representation() -> None:
    assert "Key" not in repr(Tokens([KEY]))
