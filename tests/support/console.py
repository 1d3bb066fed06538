"""The console as a person with a keyboard uses it, and what a reader of its pages finds."""

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.cut_connections import relayed

SERIOUS = ("serious", "critical")
# Links to what the browser says of itself, not of the page.
HARMLESS = ("Failed to load resource",)
MOST_TABS = 80


@dataclass
class Console:
    """An open page of the console; `mistakes` are errors of its scripts, and what its policy refused."""

    server: Any
    page: Any
    context: Any
    mistakes: list = field(default_factory=list)
    requests: list = field(default_factory=list)
    relay_port: int = 0
    choosers: asyncio.Queue = field(default_factory=asyncio.Queue)

    @property
    def url(self):
        if self.relay_port:
            return f"http://127.0.0.1:{self.relay_port}"
        return str(self.server.http.base_url).rstrip("/")

    @asynccontextmanager
    async def through_relay(self):
        """Open the console through a relay, which can be cut, and yield the relay."""
        async with relayed(self.server.http.base_url.port) as (relay, self.relay_port):
            await self.open()
            yield relay

    async def open(self, address="#/chat"):
        """Open an address of the console, as its first page or after another."""
        if not self.requests:
            self.page.on("pageerror", lambda error: self.mistakes.append(str(error)))
            self.page.on("console", self._note)
            self.page.on("dialog", lambda dialog: self.mistakes.append(f"a dialog: {dialog.message}"))
            self.page.on("filechooser", self.choosers.put_nowait)
            self.page.on("request", lambda request: self.requests.append(request.url))
        await self.page.goto(f"{self.url}/{address}")
        await self.page.wait_for_selector("main h1")

    def _note(self, message):
        if message.type in ("error", "warning") and not message.text.startswith(HARMLESS):
            self.mistakes.append(message.text)

    async def press(self, *keys):
        for key in keys:
            await self.page.keyboard.press(key)

    async def type(self, text):
        await self.page.keyboard.insert_text(text)

    async def tab_to(self, selector, *, back=False):
        """Press Tab until an element has the focus, as somebody without a mouse must."""
        for _ in range(MOST_TABS):
            if await self.page.evaluate("selector => document.activeElement?.matches(selector)", selector):
                return
            await self.press("Shift+Tab" if back else "Tab")
        focused = await self.page.evaluate("document.activeElement?.outerHTML.slice(0, 200)")
        raise AssertionError(f"Tab does not reach {selector}: it ends at {focused}")

    async def say(self, text):
        """Send a message by keyboard."""
        await self.tab_to("#message")
        await self.type(text)
        await self.press("Enter")

    async def answers(self, count=1, timeout_s=15):
        """Wait until so many answers are complete, and return the texts of all."""
        done = "count => document.querySelectorAll('.turns .answer:not([aria-busy]) .answer-foot span').length >= count"
        await self.page.wait_for_function(done, arg=count, timeout=timeout_s * 1000)
        return [await one.inner_text() for one in await self.page.query_selector_all(".turns .answer > .output")]

    async def choose(self, *files):
        """Choose files by keyboard, in the dialog of the browser."""
        await self.tab_to("#files")
        await self.press("Enter")
        chooser = await asyncio.wait_for(self.choosers.get(), 15)
        await chooser.set_files(list(files))

    async def text(self, selector="main"):
        return await self.page.locator(selector).first.inner_text()

    async def said(self):
        """Return what a screen reader was given to say last."""
        return await self.page.locator("#status").inner_text()

    async def problems(self, axe):
        """Return what axe finds serious on the page, each with the elements."""
        await self.page.evaluate(axe)
        found = await self.page.evaluate("axe.run({resultTypes: ['violations']})")
        return [
            f"{one['id']}: {[node['html'][:160] for node in one['nodes']]}"
            for one in found["violations"]
            if one["impact"] in SERIOUS
        ]

    async def overflow(self):
        """Return how many pixels the page is wider than the screen."""
        return await self.page.evaluate("document.documentElement.scrollWidth - innerWidth")

    async def execute(self, request_id, **fields):
        """Run a request beside the page, and return its response."""
        body = {"request_id": request_id, "mode": "MODE_CHAT", "keep_request": True, **fields}
        body.setdefault("messages", [{"role": "ROLE_USER", "content": "What time is it?"}])
        answered = await self.server.http.post("/v1/executions", json=json.loads(json.dumps(body)))
        assert answered.status_code == 200, answered.text
        return answered.json()
