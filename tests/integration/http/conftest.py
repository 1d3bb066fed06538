"""The gateway of these tests."""

from contextlib import asynccontextmanager

import pytest

from tests.support.http_app import serving_http
from tests.support.mcp_app import deployment


@pytest.fixture
def served(tmp_path):
    """Return what serves with these services and settings."""

    @asynccontextmanager
    async def serve(services=None, **settings):
        async with deployment(tmp_path, services) as world, serving_http(world, **settings) as server:
            yield server

    return serve
