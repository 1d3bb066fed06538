"""The inference service's app over a scripted engine."""

import asyncio

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.telemetry.clock import SystemClock
from services.inference.adapters.jinja_chat_template import JinjaChatTemplate
from services.inference.app.engine_loop import EngineLoop
from services.inference.app.generation import Generation
from services.inference.app.models import ServedModel
from services.inference.core.scheduling.batching import Limits

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "


class NoConstraints:
    async def start(self, _constraint):
        raise InvalidRequest("the scripted engine has no masks", code=ErrorCode.CONSTRAINT_GRAMMAR_INVALID)


def generation_over(engine, *, queue_capacity=4, max_running=8):
    loop = EngineLoop(
        engine,
        limits=Limits(engine.max_batch_tokens, max_running, queue_capacity),
        max_idle_tokens=256,
        max_parked_bytes=1000,
        clock=SystemClock(),
        post=asyncio.get_running_loop().call_soon_threadsafe,
    )
    return Generation(
        loop=loop,
        template=JinjaChatTemplate(TEMPLATE, bos_token="", eos_token=""),
        constraints=NoConstraints(),
        clock=SystemClock(),
        max_candidates=8,
        may_draft=True,
        new_seed=lambda: 7,
    )


async def served(generation):
    return ServedModel(generation.engine.model, generation.engine, generation.close, generation)


def computed(engine):
    return sum(len(part) for batch in engine.batches for part in batch)
