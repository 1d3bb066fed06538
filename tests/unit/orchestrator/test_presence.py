from types import SimpleNamespace

import pytest

from pagantic_common.domain.errors import ErrorCode, Overloaded, PreconditionFailed
from pagantic_common.testing.clock import FakeClock
from services.orchestrator.app.presence import Presence
from tests.support.keys import execution

FULL = execution("old", "acme")
FREE = execution("new", "beta")


class Journal:
    async def interrupted(self, *, with_plans):
        return [FULL, FREE]

    async def after_sequence(self, _key):
        return 0

    async def timeline(self, _key, _after):
        return []

    async def get(self, _key):
        return SimpleNamespace(is_interrupted=True)


class Executions:
    registry = SimpleNamespace(has_room_for_others=True)

    def __init__(self, code):
        self.code = code
        self.resumed = []

    async def resume(self, key):
        if key == FULL:
            raise Overloaded("full", code=self.code)
        self.resumed.append(key)


@pytest.mark.parametrize(("code", "resumed"), [(ErrorCode.QUOTA_CONCURRENCY, [FREE]), (None, [])])
async def test_a_tenant_without_room_does_not_keep_the_plans_of_others_from_resuming(code, resumed):
    executions = Executions(code)
    await Presence(executions, Journal(), FakeClock(), "me", resumes_plans=True)._resume_unattended()
    assert executions.resumed == resumed


async def test_an_orchestrator_whose_name_was_taken_says_that_it_must_end():
    class TakenJournal(Journal):
        async def beat(self):
            raise PreconditionFailed("another orchestrator runs as 'me'")

    presence = Presence(Executions(None), TakenJournal(), FakeClock(), "me", resumes_plans=False)
    for _ in range(2):
        with pytest.raises(PreconditionFailed):
            await presence.look()
    assert await presence.wait_until_lost() == "another orchestrator runs as 'me'"
