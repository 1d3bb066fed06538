"""The MCP server over HTTP in front of a real orchestrator whose services do what a test says."""

from contextlib import asynccontextmanager

import pytest
from tests.support.mcp_app import deployment, serving_mcp


@pytest.fixture
def served(tmp_path):
    """Serve with these services and settings, and give what a test needs of it."""

    @asynccontextmanager
    async def serve(services=None, **settings):
        async with deployment(tmp_path, services) as world, serving_mcp(world, **settings) as served:
            yield served

    return serve
