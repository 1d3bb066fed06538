"""An answer that one replica began is continued by another from its tokens."""

import asyncio
import contextlib

import pytest

from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic.inference.v1 import inference_service_pb2_grpc as rpc
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.rpc.call import call_stream
from pagantic_common.testing.scripted_engine import ScriptedEngine, random_logits
from pagantic_common.testing.server import serving
from services.inference.app.models import Models, ModelSpec
from tests.support.inference_app import generation_over, registration_of, served


@contextlib.asynccontextmanager
async def inference(engine):
    generation = generation_over(engine)
    models = Models([ModelSpec(engine.model, 0)], lambda _spec: served(generation))
    try:
        async with models.use(""), serving([registration_of(models)]) as (channel, _address):
            yield rpc.InferenceServiceStub(channel)
    finally:
        await generation.close()


async def infer(stub, **fields):
    request = pb.InferRequest(text="Once upon a time", max_tokens=24, reports_tokens=True, **fields)
    request.sampling.temperature, request.sampling.seed = 1.0, 11
    return [event async for event in call_stream("inference", stub.Infer, request, 10.0)]


def tokens_of(events):
    return [token for event in events for token in event.delta.tokens]


def answer_of(events):
    end = next(event.candidate_end for event in events if event.HasField("candidate_end"))
    return "".join(event.delta.content for event in events), end.finish_reason, end.output_tokens


@pytest.mark.parametrize("stop", [[], ["ab"], ["e", "o", "a"]])
async def test_every_cut_leads_to_the_same_answer(stop):
    async with (
        inference(ScriptedEngine(logits_of=random_logits)) as first,
        inference(ScriptedEngine(logits_of=random_logits)) as other,
    ):
        whole = await infer(first, stop=stop)
        tokens = tokens_of(whole)
        for cut in range(1, len(tokens)):
            continued = await infer(other, stop=stop, said_tokens=tokens[:cut])
            assert answer_of(continued) == answer_of(whole)
            assert tokens_of(continued) == tokens


async def test_the_text_so_far_comes_first_and_the_prompt_is_counted_without_it():
    async with inference(ScriptedEngine("hello")) as stub:
        events = await infer(stub, said_tokens=list(b"hel"))
    assert events[0].started.prompt_tokens == len("Once upon a time")
    assert answer_of(events)[0].startswith("hello")
    assert tokens_of(events)[:3] == list(b"hel")


async def test_the_answers_of_others_are_not_disturbed():
    async with inference(ScriptedEngine(logits_of=random_logits)) as stub:
        whole = await infer(stub)
        tokens = tokens_of(whole)
        cuts = range(1, len(tokens), 5)
        answers = await asyncio.gather(*(infer(stub, said_tokens=tokens[:cut]) for cut in cuts))
    assert {answer_of(events) for events in answers} == {answer_of(whole)}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"said_tokens": [104], "candidate_count": 2}, "continue one candidate"),
        ({"said_tokens": [104], "top_logprobs": 1}, "continue one candidate"),
        ({"said_tokens": [4_000_000_000]}, "cannot have this token"),
        ({"said_tokens": [104] * 24}, "nothing is left to say"),
        ({"said_tokens": [*b"the end"], "stop": ["end"]}, "nothing is left to say"),
    ],
)
async def test_tokens_that_cannot_be_continued_are_refused(fields, problem):
    async with inference(ScriptedEngine("hello")) as stub:
        with pytest.raises(InvalidRequest, match=problem):
            await infer(stub, **fields)
