"""A console in a headless Chromium, before a real gateway and orchestrator whose services do what a test says."""

import importlib.util
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from pagantic_common.models.folder import PulledModel
from tests.support import needs
from tests.support.browser import axe_source, environment_of, find_chromium
from tests.support.console import Console
from tests.support.http_app import serving_http
from tests.support.mcp_app import deployment
from tests.support.real_collections import real_collections
from tests.support.scripted_services import scripted_services


@pytest.fixture(scope="session")
def chromium():
    if importlib.util.find_spec("playwright") is None:
        needs.skip_without(needs.CHROMIUM)
    return find_chromium()


@pytest.fixture(scope="session")
def axe():
    return axe_source()


@asynccontextmanager
async def collections_in(path, *, is_real):
    """Run a real context service; without it, yield None."""
    if not is_real:
        yield None
        return
    async with real_collections(path) as collections:
        yield collections


def with_context(services, collections):
    """Return services whose executions retrieve from real collections, where there are some."""
    if collections is None:
        return services
    return replace(services or scripted_services(), context=collections.port)


@pytest.fixture(autouse=True)
def pulled(tmp_path, monkeypatch):
    """Have one model that was pulled, and none that this machine has."""
    folder = tmp_path / "pulled"
    folder.mkdir()
    monkeypatch.setenv("PAGANTIC_MODELS_FOLDER", str(folder))
    model = PulledModel(
        name="qwen:0.5b",
        source="hf:owner/repo/file.gguf",
        sha256="0" * 64,
        size_bytes=491_000_000,
        pulled_at="2026-03-01T12:00:00Z",
        context_tokens=32768,
        capabilities=("chat", "tools", "json_schema"),
        license="Apache-2.0",
    )
    (folder / "qwen:0.5b.json").write_text(model.model_dump_json())
    (folder / "qwen:0.5b.gguf").write_bytes(b"GGUF")


@pytest.fixture
def console(tmp_path, chromium):
    """Return what opens the console of a gateway with these services and settings."""
    from playwright.async_api import async_playwright  # noqa: PLC0415 - it may be missing

    @asynccontextmanager
    async def open_console(
        services=None, *, width=1280, theme="light", orchestrator=None, has_collections=False, **settings
    ):
        async with (
            collections_in(tmp_path, is_real=has_collections) as collections,
            deployment(
                tmp_path, with_context(services, collections), collections=collections, **(orchestrator or {})
            ) as world,
            serving_http(world, **settings) as server,
            async_playwright() as playwright,
        ):
            browser = await playwright.chromium.launch(
                executable_path=chromium, args=["--no-sandbox"], env=environment_of(chromium)
            )
            context = await browser.new_context(viewport={"width": width, "height": 860}, color_scheme=theme)
            opened = Console(server, await context.new_page(), context)
            try:
                await opened.open()
                yield opened
                assert opened.mistakes == []
            finally:
                await browser.close()

    return open_console
