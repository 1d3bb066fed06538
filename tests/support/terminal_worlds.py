"""What the services behind the terminal program do in its tests."""

import asyncio

from services.orchestrator.core.model.response import InferenceDelta
from tests.support.scripted_services import ScriptedInference, answer

# What a model may say to steer a terminal, and what is shown of it.
CONTROLS = {
    "\x1b[31mred\x1b[0m": "␛[31mred␛[0m",
    "\x1b]8;;http://evil.example\x07click\x1b]8;;\x07": "␛]8;;http://evil.example␇click␛]8;;␇",
    "\x1b]0;owned\x07": "␛]0;owned␇",
    "\x1b]52;c;b3duZWQ=\x07": "␛]52;c;b3duZWQ=␇",
    "c1\x9b2Jx": "c1«U+009B»2Jx",
    "old\rnew": "old␍new",
    "gpj\u202eexe": "gpj«U+202E»exe",
    "back\b\b\bx": "back␈␈␈x",
}


class Thinking(ScriptedInference):
    """Reasons, and answers."""

    async def infer(self, command, hints):
        yield InferenceDelta()
        yield InferenceDelta(reasoning="First I count. ")
        yield InferenceDelta(reasoning="Then I add.")
        yield InferenceDelta("It is seven.")
        yield answer("It is seven.")


class Paused(ScriptedInference):
    """Says half of its answer, and the rest when it may."""

    def __init__(self):
        super().__init__(answer("first half, second half"))
        self.may_go_on = asyncio.Event()

    async def infer(self, command, hints):
        self.commands.append(command)
        yield InferenceDelta()
        yield InferenceDelta("first half, ")
        await self.may_go_on.wait()
        yield InferenceDelta("second ")
        yield InferenceDelta("half")
        yield self.outputs[0]


class Fast(ScriptedInference):
    """Says its answer in pieces."""

    PIECE = 1000

    async def infer(self, command, hints):
        yield InferenceDelta()
        [said] = self.outputs
        for at in range(0, len(said.content), self.PIECE):
            yield InferenceDelta(said.content[at : at + self.PIECE])
        yield said
