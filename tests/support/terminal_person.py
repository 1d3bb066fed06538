"""The terminal program as a person at its keys uses it."""

import asyncio
import re
import time
from dataclasses import dataclass
from typing import Any

from textual import events

from pagantic_common.domain.errors import NotFound
from tests.support.relay import Relay
from tests.support.watching import LIMIT_S, Watching


def screen_lines(app):
    """Return the lines that a program's screen shows."""
    strips = app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip).rstrip() for strip in strips]


def screen_text(app):
    """Return what a program's screen shows."""
    return "\n".join(screen_lines(app))


@dataclass
class Person(Watching):
    """Types, and reads what is seen; `world` is what runs behind the program."""

    app: Any
    pilot: Any
    world: Any
    relay: Relay

    @property
    def lines(self):
        return screen_lines(self.app)

    @property
    def text(self):
        return screen_text(self.app)

    async def press(self, *keys):
        await self.pilot.press(*keys)

    async def type(self, text):
        await self.press(*text)

    async def paste(self, text):
        self.app.post_message(events.Paste(text))
        await self.pilot.pause()

    async def say(self, text):
        """Send a message."""
        await self.paste(text)
        await self.press("enter")

    async def ask(self, text):
        """Send a message, and wait until the end of its answer is seen."""
        before = self.ended()
        await self.say(text)
        await self.wait_until(lambda: len(self.ended()) > len(before), "the end of the answer")
        await self.wait_for(self.ended()[-1])

    def ended(self):
        """Return the requests whose answers are complete, in their order."""
        return re.findall("request ([0-9a-f]+):", self.whole())

    def whole(self):
        """Return the texts of the whole conversation, seen or not."""
        return "\n".join(str(one.render()) for one in self.app.query("#transcript Plain") if one.display)

    async def look(self):
        await self.pilot.pause(0.02)
        return True

    async def press_until(self, pattern, *keys):
        """Press keys again and again until the screen shows what the pattern matches."""
        until_s = time.monotonic() + LIMIT_S
        while not re.search(pattern, self.text):
            assert time.monotonic() < until_s, f"{pattern!r} was not seen:\n{self.text}"
            await self.press(*keys)
            await self.pilot.pause(0.2)

    async def executions(self):
        return await self.app.client.list_executions()

    async def newest(self):
        """Return the newest execution."""
        for _ in range(200):
            for execution in await self.executions():
                return await self.app.client.get_execution(execution.request_id)
            await asyncio.sleep(0.02)
        raise NotFound("no execution was seen")

    async def ask_and_leave(self, text):
        """Send a message, and wait for the beginning of its answer alone."""
        await self.say(text)
        await self.wait_for("writing…")
        await self.wait_until(lambda: self.app.query("#transcript .answer Plain"), "a part of the answer")

    async def open_newest(self):
        """Open the conversation of the newest execution, as its line in the list does."""
        self.app._chat.open((await self.newest()).session_id)
