"""Waits for what a person at a terminal sees."""

import re
import time

LIMIT_S = 60.0


class Watching:
    """What has a `text`, the screen now, and `look()`, which lets time pass and tells whether anything may follow."""

    async def wait_for(self, pattern):
        """Wait until the screen shows what the pattern matches, and return the match."""
        return await self.wait_until(lambda: re.search(pattern, self.text), pattern)

    async def wait_until(self, find, what="what was waited for"):
        """Wait until something is found on the screen, and return it."""
        until_s, may_follow = time.monotonic() + LIMIT_S, True
        while not (found := find()):
            assert may_follow, f"{what!r} was not seen:\n{self.told}"
            may_follow = await self.look() and time.monotonic() < until_s
        return found

    @property
    def told(self):
        """What a failed test tells."""
        return self.text
