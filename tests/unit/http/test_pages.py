"""Pages of lists are filled from generators, which are closed with the page."""

import sys
from contextlib import contextmanager

import pytest

from gateway.http.openai.pages import page_within
from gateway.http.openai.responses.conversations import _behind
from gateway.http.openai.responses.references import walk_items
from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import session_pb2


@contextmanager
def generators_left_open():
    """Yield the list of the generators that are left open in the block, by name."""
    names, hooks = [], sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(finalizer=lambda generator: names.append(generator.__qualname__))
    yield names
    sys.set_asyncgen_hooks(*hooks)


class Stored:
    """A client with one conversation."""

    messages = tuple(message_pb2.Message(role=message_pb2.ROLE_USER, content=f"{number}") for number in range(50))

    async def get_session_page(self, page):
        first = page.before_position - page.max_messages
        messages = self.messages[first : page.before_position]
        return session_pb2.Session(session_id="s", messages=messages, first_position=first, message_count=50)


@pytest.mark.parametrize("is_ascending", [True, False])
async def test_a_page_closes_the_generators_that_fill_it(is_ascending):
    with generators_left_open() as left_open:
        page = await page_within(_behind(walk_items(Stored(), "s", 0, 50, is_ascending=is_ascending), ""), 3)
    assert (len(page["data"]), page["has_more"], left_open) == (3, True, [])
