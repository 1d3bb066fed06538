"""How an answer of the terminal program is stopped."""

import pytest

from gateway.tui.work import running
from gateway.tui.work.answer import Answer
from gateway.tui.work.running import Running
from pagantic_common.domain.errors import NotFound, Unavailable


class Cancelling:
    """Raises these in turn, the last one again and again; None is a cancellation."""

    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)
        self.calls = 0

    async def cancel(self, request_id):
        self.calls += 1
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if outcome is not None:
            raise outcome


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(running, "CANCEL_WAIT_S", 0.0)


@pytest.mark.parametrize(
    ("outcomes", "calls"), [([NotFound("none")], running.CANCEL_TRIES), ([NotFound("none"), Unavailable("lost")], 2)]
)
async def test_a_stop_that_cannot_be_done_says_why_and_can_be_tried_again(outcomes, calls):
    client = Cancelling(*outcomes)
    answered = Running(client, Answer("r"), None)
    assert await answered.stop() is outcomes[-1]
    assert (client.calls, answered.is_stopping) == (calls, False)


async def test_a_stop_waits_for_a_request_that_is_on_the_way():
    client = Cancelling(NotFound("none"), None)
    answered = Running(client, Answer("r"), None)
    assert await answered.stop() is None
    assert (client.calls, answered.is_stopping) == (2, True)
