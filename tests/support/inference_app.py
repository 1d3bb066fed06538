"""The inference service's app over a scripted engine."""

import asyncio

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.telemetry.clock import SystemClock
from services.inference.adapters.prompts.jinja_chat_template import JinjaChatTemplate
from services.inference.app.engine_loop import EngineLoop
from services.inference.app.generation import Generation
from services.inference.app.models import ServedModel
from services.inference.app.prefix_storage import Submission
from services.inference.app.preparation import Preparation
from services.inference.app.prepared_request import RequestPreparer
from services.inference.app.replica_watch import ReplicaWatch
from services.inference.app.tuning import Tuner
from services.inference.core.scheduling.batching import Limits
from services.inference.core.tuning import untuned
from services.inference.servicer import SCOPES, SERVICE_NAME, InferenceServicer

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "


class NoConstraints:
    async def start(self, _constraint):
        raise InvalidRequest("the scripted engine has no masks", code=ErrorCode.CONSTRAINT_GRAMMAR_INVALID)

    def close(self):
        pass


def generation_over(
    engine,
    *,
    queue_capacity=4,
    max_running=8,
    template=TEMPLATE,
    constraints=None,
    shared_prompts=(),
    max_parked_bytes=1000,
    storage=None,
    read_s=2.0,
):
    loop = EngineLoop(
        engine,
        limits=Limits(
            engine.max_batch_tokens,
            max_running,
            queue_capacity,
            prompt_step_tokens=engine.max_prompt_batch_tokens,
            mixes_steps=engine.mixes_steps,
        ),
        max_idle_tokens=256,
        max_parked_bytes=max_parked_bytes,
        clock=SystemClock(),
        post=asyncio.get_running_loop().call_soon_threadsafe,
        put=storage.blocks.put if storage else None,
        model_digest=storage.model_digest if storage else "",
    )
    chat_template = JinjaChatTemplate(template, bos_token="", eos_token="")
    return Generation(
        submission=Submission(loop, storage, read_s=read_s),
        preparation=Preparation(engine, window_tokens=engine.model.context_window),
        requests=RequestPreparer(
            engine, chat_template, may_draft=True, new_seed=lambda: 7, shared_prompts=shared_prompts
        ),
        constraints=constraints or NoConstraints(),
        clock=SystemClock(),
    )


async def served(generation):
    return ServedModel(generation.engine.model, generation)


def registration_of(models, tuner=None):
    """Return the service over models; without a tuner nothing is measured."""
    return Registration(
        SERVICE_NAME,
        InferenceServicer(models, tuner or resting_tuner(), ReplicaWatch(models, SystemClock())).add_to,
        SCOPES,
    )


def resting_tuner():
    return Tuner(
        untuned(1),
        given={},
        prober=None,
        store=None,
        in_use=asyncio.Event(),
        apply=None,
        clock=SystemClock(),
        note="the engine is scripted",
    )


def computed(engine):
    return sum(len(part) for batch in engine.batches for part in batch)
