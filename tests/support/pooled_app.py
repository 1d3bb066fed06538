"""The inference service's app over scripted embedders and cross-encoders."""

import asyncio
import threading

from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic_common.rpc.call import call_unary
from pagantic_common.telemetry.clock import SystemClock
from services.inference.app.models import Models, ModelSpec, ServedModel
from services.inference.app.pooling import EmbedderLoop, Embedding, PairScoring
from tests.support.inference_app import generation_over, served


class Gate:
    """Lets an embedder go on when it is told to."""

    def __init__(self):
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __call__(self, _texts):
        self.reached.set()
        self.opened.wait(60)


def embedding_over(embedder, *, queue_capacity=4):
    return Embedding(EmbedderLoop(embedder, queue_capacity=queue_capacity, clock=SystemClock()))


def pair_scoring_over(cross_encoder, *, queue_capacity=4):
    loop = EmbedderLoop(cross_encoder, queue_capacity=queue_capacity, clock=SystemClock())
    return PairScoring(loop, cross_encoder.pair_layout)


def models_over(*pooled, engine=None):
    """Return models of which `engine`, if there is one, is the default."""
    made = {work.embedder.model.name: work for work in pooled}
    specs = [ModelSpec(work.embedder.model, 0) for work in pooled]

    async def load(spec):
        if engine is not None and spec.info is engine.model:
            return await served(generation_over(engine))
        return ServedModel(spec.info, made[spec.info.name])

    return Models([ModelSpec(engine.model, 0), *specs] if engine else specs, load)


async def load_with(stub, *, queued_requests):
    for _ in range(500):
        load = await call_unary("inference", stub.GetLoad, pb.GetLoadRequest())
        if load.queued_requests == queued_requests:
            return load
        await asyncio.sleep(0.01)
    raise AssertionError(load)
