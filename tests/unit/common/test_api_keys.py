import os
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.calls.api_keys import ApiKey, Refusal, StoredKey, hash_of, judge, make_key, parse_key
from pagantic_common.domain.calls.principal import PrincipalKind, Scope
from pagantic_common.domain.errors import ErrorCode

NOW = 1000.0
KEY = make_key(os.urandom)
STORED = StoredKey("acme", KEY.key_id, "ci", frozenset({Scope.EXECUTE}), hash_of(KEY.secret), NOW - 10)


def test_a_key_is_read_back_from_its_text_and_shows_its_secret_nowhere_else():
    assert parse_key(KEY.text) == KEY
    assert re.fullmatch(r"pag_[a-z2-7]{16}_[a-z2-7]{52}_[0-9a-f]{8}", KEY.text)
    assert KEY.secret not in repr(KEY) + str(KEY)
    assert KEY.secret.encode() not in STORED.secret_hash


@pytest.mark.parametrize("letter", ["\0", "A", "1", "é", " "])
def test_a_key_has_no_letters_but_its_own_whatever_its_checksum(letter):
    for odd in (ApiKey(letter + KEY.key_id[1:], KEY.secret), ApiKey(KEY.key_id, letter + KEY.secret[1:])):
        assert parse_key(odd.text) is None


def test_two_keys_differ_in_id_and_secret():
    other = make_key(os.urandom)
    assert other.key_id != KEY.key_id
    assert other.secret != KEY.secret


@given(st.integers(0, len(KEY.text) - 1), st.sampled_from("abz2_0-é"))
def test_a_mistyped_key_is_none(position, letter):
    text = KEY.text[:position] + letter + KEY.text[position + 1 :]
    assert parse_key(text) in (None, KEY if text == KEY.text else None)


@given(st.text())
def test_no_text_breaks_the_reader(text):
    assert parse_key(text) is None
    assert parse_key(f"pag_{text}") is None


def test_the_holder_of_a_key_has_its_tenant_and_scopes_and_no_others():
    principal = judge(KEY, replace(STORED, expires_at=NOW + 1), NOW)
    assert (principal.tenant, principal.subject, principal.kind) == ("acme", "ci", PrincipalKind.API_KEY)
    assert (principal.scopes, principal.key_id, principal.expires_at) == ({Scope.EXECUTE}, KEY.key_id, NOW + 1)


@pytest.mark.parametrize(
    ("key", "stored", "code"),
    [
        (KEY, None, ErrorCode.AUTH_INVALID),
        (ApiKey(KEY.key_id, "a" * 52), STORED, ErrorCode.AUTH_INVALID),
        (KEY, replace(STORED, revoked_at=NOW), ErrorCode.AUTH_INVALID),
        (KEY, replace(STORED, revoked_at=NOW + 5), ErrorCode.AUTH_INVALID),  # by a clock that is ahead
        (KEY, replace(STORED, expires_at=NOW), ErrorCode.AUTH_EXPIRED),
        (ApiKey(KEY.key_id, "a" * 52), replace(STORED, expires_at=NOW), ErrorCode.AUTH_INVALID),
        (KEY, replace(STORED, revoked_at=NOW - 1, expires_at=NOW), ErrorCode.AUTH_INVALID),
    ],
)
def test_a_key_that_does_not_hold_is_refused(key, stored, code):
    refusal = judge(key, stored, NOW)
    assert isinstance(refusal, Refusal)
    assert refusal.code is code
