"""The service that a model's alias chooses."""

import pytest

from pagantic_common.domain.errors import Unavailable
from pagantic_common.domain.messages import ModelInfo
from services.orchestrator.adapters.inference.pooled_inference import PooledInference
from services.orchestrator.core.model.request import Hints
from services.orchestrator.ports.services import InferencePort


class Service:
    """Answers each call with its own name and the call's."""

    def __init__(self, name, *models):
        self._name = name
        self._models = models

    def __getattr__(self, call):
        def answer(*_arguments):
            return self._name, call

        async def answer_later(*arguments):
            return answer(*arguments)

        return answer if call in {"infer", "sample", "context_window"} else answer_later

    async def list_models(self):
        if not self._models:
            raise Unavailable("it is gone")
        return [ModelInfo(name, 1024) for name in self._models]


# The arguments of each call for a model; what else is asked does not matter here.
CALLS = {
    "count_tokens": lambda model: ((), (), ("text",), model),
    "context_window": lambda model: (model,),
    "infer": lambda model: (None, Hints(model=model)),
    "sample": lambda model: (None, Hints(model=model)),
    "score": lambda model: (None, Hints(model=model), ("a",)),
    "decide": lambda model: (None, Hints(model=model)),
    "embed": lambda model: (("text",), model),
    "score_pairs": lambda model: ("query", ("text",), model),
}


def test_every_call_of_the_port_is_tried_here():
    calls = {name for name in vars(InferencePort) if not name.startswith("_")}
    assert calls == {*CALLS, "list_models"}


@pytest.mark.parametrize("call", CALLS)
async def test_the_alias_chooses_the_service_of_a_call(call):
    pooled = PooledInference(Service("default", "a"), {"b": Service("pool", "b")})
    for alias, service in {"": "default", "a": "default", "b": "pool", "c": "default"}.items():
        answer = getattr(pooled, call)(*CALLS[call](alias))
        answered = answer if isinstance(answer, tuple) else await answer
        assert answered == (service, call)


async def test_models_are_listed_where_their_alias_leads():
    both = Service("both", "a", "c", "d")
    pooled = PooledInference(Service("default", "z", "a", "b"), {"a": both, "c": both})
    assert [model.name for model in await pooled.list_models()] == ["z", "b", "a", "c"]


async def test_a_pool_that_does_not_answer_is_left_out_and_the_default_service_is_not():
    pooled = PooledInference(Service("default", "a"), {"b": Service("gone")})
    assert [model.name for model in await pooled.list_models()] == ["a"]
    pooled = PooledInference(Service("gone"), {"b": Service("pool", "b")})
    with pytest.raises(Unavailable):
        await pooled.list_models()
