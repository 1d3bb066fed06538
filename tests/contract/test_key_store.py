"""What every store of API keys does, in each database."""

from dataclasses import replace

import pytest
from sqlalchemy import create_engine

from pagantic_common.domain.calls.api_keys import StoredKey
from pagantic_common.domain.calls.principal import Scope
from pagantic_common.domain.errors import InvalidRequest, NotFound
from services.orchestrator.adapters.journal.database import check_url
from services.orchestrator.adapters.journal.upkeep.purge import forget_old_keys

KEY = StoredKey("acme", "k1", "ci", frozenset({Scope.EXECUTE, Scope.READ}), b"\0hash\xff", 10.0, 20.5)


async def test_a_key_is_found_as_it_was_added(journal):
    await journal.add_key(KEY)
    assert await journal.find_key("k1") == KEY
    assert await journal.find_key("k2") is None
    forever = replace(KEY, key_id="k2", expires_at=None)
    await journal.add_key(forever)
    assert await journal.find_key("k2") == forever


async def test_keys_are_listed_oldest_first_by_page_and_tenant(journal):
    keys = [
        replace(KEY, key_id=f"k{number}", tenant=f"t{number % 2}", created_at=float(number // 2)) for number in range(5)
    ]
    for key in reversed(keys):
        await journal.add_key(key)
    found, token = [], ""
    while True:
        page = await journal.list_keys(tenant="", limit=2, after=token)
        found += page.items
        if not (token := page.next_token):
            break
    assert found == keys
    assert (await journal.list_keys(tenant="t1", limit=9, after="")).items == [keys[1], keys[3]]
    for wrong in ("x", "0x1p+0", "0x1p+0/a b", "nan/k1"):
        with pytest.raises(InvalidRequest):
            await journal.list_keys(tenant="", limit=1, after=wrong)


async def test_a_key_is_revoked_once(journal):
    await journal.add_key(KEY)
    assert await journal.revoke_key("k1", 15.0) == replace(KEY, revoked_at=15.0)
    assert await journal.revoke_key("k1", 16.0) == replace(KEY, revoked_at=15.0)
    assert (await journal.find_key("k1")).revoked_at == 15.0
    with pytest.raises(NotFound):
        await journal.revoke_key("k2", 15.0)


@pytest.mark.sql_only
async def test_keys_that_ended_long_ago_are_purged(journal, database_url):
    revoked = replace(KEY, key_id="revoked", expires_at=None)
    await journal.add_key(revoked)
    await journal.revoke_key("revoked", 15.0)
    for key_id, expires_at in (("expired", 20.0), ("later", 40.0), ("never", None)):
        await journal.add_key(replace(KEY, key_id=key_id, expires_at=expires_at))
    engine = create_engine(check_url(database_url))
    with engine.begin() as db:
        assert [forget_old_keys(db, 30.0, 1) for _ in range(3)] == [1, 1, 0]
    engine.dispose()
    left = (await journal.list_keys(tenant="", limit=9, after="")).items
    assert {key.key_id for key in left} == {"later", "never"}
