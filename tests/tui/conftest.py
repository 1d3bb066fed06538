"""The terminal program before a real orchestrator whose services do what a test says, by its keys."""

import os
from contextlib import asynccontextmanager

import pytest

from gateway.tui.app import TerminalApp
from pagantic_common.client import AsyncClient
from tests.support.mcp_app import deployment
from tests.support.relay import relaying
from tests.support.screen import PAGANTIC, Screen
from tests.support.terminal_person import Person


@pytest.fixture
def terminal(tmp_path):
    """Return what opens the program before these services; through a relay the connection can be cut."""

    @asynccontextmanager
    async def open_terminal(services=None, *, size=(80, 24), is_relayed=False, **orchestrator):
        async with deployment(tmp_path, services, **orchestrator) as world, relaying(world.address) as relay:
            address = relay.address if is_relayed else world.address
            app = TerminalApp(AsyncClient(address, patience_s=0))
            async with app.run_test(size=size, notifications=True) as pilot:
                person = Person(app, pilot, world, relay)
                await person.wait_for("context|Unavailable|UNAVAILABLE")
                yield person

    return open_terminal


@pytest.fixture
def screen(tmp_path):
    """Return what runs `pagantic` on a terminal of its own before these services."""

    @asynccontextmanager
    async def open_screen(services=None, *, columns=80, rows=24, address=None, term="xterm-256color", **orchestrator):
        async with deployment(tmp_path, services, **orchestrator) as world:
            environment = {key: value for key, value in os.environ.items() if not key.startswith("PAGANTIC_")}
            environment |= {"PAGANTIC_ADDRESS": address or world.address, "PAGANTIC_STATE": str(tmp_path / "state")}
            opened = Screen([PAGANTIC], environment | {"TERM": term}, columns=columns, rows=rows)
            opened.world = world
            try:
                yield opened
            finally:
                opened.close()

    return open_screen
