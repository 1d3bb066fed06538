"""A tenant or a session with as many bytes as it may: what is refused, what is not, and that nobody else notices."""

from contextlib import asynccontextmanager

import pytest

from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.domain.errors import ErrorCode, Overloaded
from services.orchestrator.app import storage
from services.orchestrator.app.storage import StorageQuota
from services.orchestrator.core.model.keys import SessionKey
from services.orchestrator.ports.storage import TenantUse
from tests.integration.orchestrator.test_identity import ADMIN_STORED, ask, key_of
from tests.support.orchestrator_app import orchestrator, system_request
from tests.support.scripted_services import ScriptedInference, answer, scripted_services

LARGE = "word " * 4000


@asynccontextmanager
async def bounded(path, **limits):
    services = scripted_services(inference=ScriptedInference(*[answer()] * 20))
    keys = {ADMIN_STORED.key_id: ADMIN_STORED}
    async with orchestrator(path, services, admin_keys=lambda: keys, **limits) as stub:
        yield stub, *[(await key_of(stub, tenant)).text for tenant in ("acme", "beta")]


def update(session_id="s", text="", **fields):
    messages = [message_pb2.Message(role=message_pb2.ROLE_USER, content=text)] if text else []
    return pb.UpdateSessionRequest(session_id=session_id, appended_messages=messages, **fields)


async def refusal(stub, method, request, key):
    with pytest.raises(Overloaded) as refused:
        await ask(stub, method, request, key)
    assert refused.value.code is ErrorCode.QUOTA_STORAGE
    assert not refused.value.failure.retryable
    assert refused.value.retry_after_s
    return str(refused.value)


@pytest.fixture
def read_always(monkeypatch):
    """Read the sum of a tenant at each check."""
    monkeypatch.setattr(storage, "REFRESH_S", 0.0)
    monkeypatch.setattr(storage, "READ_SHARE", float("inf"))


@pytest.mark.usefixtures("read_always")
async def test_a_tenant_that_is_full_is_refused_alone(tmp_path):
    async with bounded(tmp_path, max_stored_bytes_of_tenant=60_000) as (stub, mine, others):
        first = system_request(LARGE, request_id="first", session_id="s", keep_request=True)
        assert (await ask(stub, "Execute", first, mine)).content == "hello"
        for method, request in (
            ("Execute", system_request(LARGE, session_id="s")),
            ("Execute", system_request(LARGE)),
            ("UpdateSession", update(text=LARGE)),
            ("UpdateSession", update(state_json={"k": f'"{LARGE}"'})),
        ):
            message = await refusal(stub, method, request, mine)
            assert "tenant 'acme' has" in message
            assert "MAX_STORED_BYTES_OF_TENANT" in message
        assert (await ask(stub, "Execute", first, mine)).content == "hello", "it has ended, and is read"
        session = (await ask(stub, "GetSession", pb.GetSessionRequest(session_id="s"), mine)).session
        assert session.message_count == 2
        removed = message_pb2.Message(role=message_pb2.ROLE_USER, removed=True)
        await ask(stub, "UpdateSession", update(removed_keys=["k"], replaced_messages={0: removed}), mine)
        assert (await ask(stub, "Execute", system_request(LARGE, session_id="s"), others)).content == "hello"
        await ask(stub, "DeleteSession", pb.DeleteSessionRequest(session_id="s"), mine)
        assert (await ask(stub, "Execute", system_request(LARGE), mine)).content == "hello"


async def test_a_request_that_is_sent_again_takes_no_room(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "REFRESH_S", 600.0)
    async with bounded(tmp_path, max_stored_bytes_of_tenant=150_000) as (stub, mine, _):
        for _ in range(10):
            assert (await ask(stub, "Execute", system_request(LARGE, request_id="first"), mine)).content == "hello"
        assert (await ask(stub, "Execute", system_request(LARGE), mine)).content == "hello"


async def test_a_session_that_is_full_is_refused_alone(tmp_path):
    async with bounded(tmp_path, max_session_bytes=50_000) as (stub, mine, _):
        for _ in range(2):
            await ask(stub, "UpdateSession", update(text=LARGE), mine)
        for method, request in (
            ("UpdateSession", update(text=LARGE)),
            ("Execute", system_request(LARGE, session_id="s", request_id="late")),
        ):
            message = await refusal(stub, method, request, mine)
            assert "session 's' has" in message
            assert "MAX_SESSION_BYTES" in message
        assert (await ask(stub, "Execute", system_request(LARGE, session_id="t"), mine)).content == "hello"
        assert (await ask(stub, "Execute", system_request(LARGE), mine)).content == "hello"
        await ask(stub, "UpdateSession", update(state_json={"k": "1"}), mine)


class Use:
    """What a journal says of its tenants."""

    def __init__(self, used_bytes, room_bytes):
        self.use = TenantUse(used_bytes, room_bytes)
        self.reads = 0

    async def tenant_use(self, _tenant):
        self.reads += 1
        return self.use

    async def session_bytes(self, _key):
        return 0


def quota(use, **bounds):
    return StorageQuota(use, **{"max_tenant_bytes": 0, "max_session_bytes": 1000} | bounds)


async def refused(storage_quota, size_bytes, tenant="acme"):
    try:
        await storage_quota.check(tenant, size_bytes)
    except Overloaded as error:
        return str(error)
    return ""


async def test_without_a_bound_a_tenant_may_have_as_much_as_is_left_free():
    assert not await refused(quota(Use(400, 500)), 100)
    assert "at most 500 are kept" in await refused(quota(Use(400, 500)), 101)
    assert not await refused(quota(Use(400, 1), max_tenant_bytes=500), 100)
    assert not await refused(quota(Use(2**40, 1), max_tenant_bytes=None), 100), "a system of one tenant"


async def test_what_was_admitted_counts_until_the_sum_is_read_again():
    use = Use(0, 1000)
    bounded_quota = quota(use)
    assert [bool(await refused(bounded_quota, 400)) for _ in range(4)] == [False, False, True, True]
    assert not await refused(bounded_quota, 400, "beta")
    assert use.reads == 2
    bounded_quota.forget("acme")
    assert not await refused(bounded_quota, 400)
    assert use.reads == 3


async def test_released_bytes_are_taken_from_the_sum_that_had_them():
    bounded_quota = quota(Use(800, 1000))
    counted = await bounded_quota.check("acme", 100)
    bounded_quota.release(counted, 100)
    assert not await refused(bounded_quota, 100)
    counted = await bounded_quota.check("acme", 100)
    bounded_quota.forget("acme")
    assert not await refused(bounded_quota, 100)
    bounded_quota.release(counted, 100)
    assert not await refused(bounded_quota, 100)
    assert await refused(bounded_quota, 1)


@pytest.mark.usefixtures("read_always")
async def test_the_sum_is_read_again_after_a_time():
    bounded_quota = quota(Use(0, 1000))
    assert [bool(await refused(bounded_quota, 400)) for _ in range(4)] == [False] * 4


async def test_the_sums_of_few_tenants_are_kept(monkeypatch):
    monkeypatch.setattr(storage, "KEPT_TENANTS", 10)
    use = Use(0, 1000)
    many = quota(use)
    for number in range(20):
        await many.check_session(SessionKey(f"t{number}", "s"), 1)
    assert len(many._uses) == 10
