"""A draft model beside a model: which one fits, what it takes, and an answer while it is there."""

import pytest

from pagantic_common.domain.errors import ErrorCode, PreconditionFailed
from pagantic_common.workers.thread_workers import ThreadWorkers
from services.inference.core.generation import InferenceRequest, Sampling
from services.inference.core.tuning import untuned
from services.inference.settings import InferenceSettings
from services.inference.wiring.model_loading import ModelLoader
from services.inference.wiring.text_generation import AllWorkers
from tests.support.fixed_drafts import FixedDepth
from tests.support.tiny_gemma import TOKENS, write_tiny_gemma

TEMPLATE = {"tokenizer.chat_template": "{{ messages[0].content }}"}


@pytest.fixture
def file(tmp_path):
    return write_tiny_gemma(tmp_path / "model.gguf", TEMPLATE)


def loader(path, draft):
    settings = InferenceSettings(port=0, draft_model_path=str(draft), embedding_model="none", context_tokens=128)
    made = ModelLoader(settings, path, AllWorkers(ThreadWorkers()))
    made.set_options(untuned(1, is_on_gpu=False), use_extra_bufts=False)
    return made


async def said_by(served):
    request = InferenceRequest(prompt="ABCABC", sampling=Sampling(temperature=0), max_tokens=40, seed=1)
    events = [event async for event in served.workload.infer(request)]
    await served.workload.close()
    return "".join(getattr(event, "content", "") for event in events)


async def test_a_draft_model_counts_as_memory_and_leaves_the_answer_as_it_is(file, tmp_path):
    draft = write_tiny_gemma(tmp_path / "draft.gguf")
    with_draft, without = loader(file, draft), loader(file, "")
    assert with_draft.specs[0].memory_bytes == file.stat().st_size + draft.stat().st_size
    served = await with_draft.load(with_draft.specs[0])
    drafts = served.workload.loop.drafts
    drafts.model.policy = FixedDepth(4)  # whether they pay or not
    said = await said_by(served)
    assert not drafts.model.is_off
    load = served.workload.load()
    assert load.guessed_tokens_total >= load.guessed_accepted_total >= 8
    assert said == await said_by(await without.load(without.specs[0]))


async def test_a_model_that_is_retuned_drafts_on(file):
    made = loader(file, file)
    served = await made.load(made.specs[0])
    await served.workload.retune(untuned(1, is_on_gpu=False))
    drafts = served.workload.loop.drafts
    assert await said_by(served)
    assert not drafts.model.is_off


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"tokenizer.ggml.eos_token_id": TOKENS - 2}, "its token 126 is b't32' .*end.*, that of the model b't32'"),
        ({"tokenizer.ggml.tokens": [f"u{index}" for index in range(TOKENS)]}, "its token 0 is b'u0', .* b'!'"),
        ({"tokenizer.ggml.token_type": [3] + [1] * (TOKENS - 1)}, "its token 0 is b'!' .control., .* b'!'"),
    ],
)
async def test_a_draft_model_with_other_tokens_does_not_start(file, tmp_path, changes, problem):
    made = loader(file, write_tiny_gemma(tmp_path / "draft.gguf", changes))
    with pytest.raises(PreconditionFailed, match=f"does not fit the model.*{problem}") as refused:
        await made.load(made.specs[0])
    assert refused.value.code is ErrorCode.CONFIG_NO_ENGINE


def test_a_draft_model_that_is_no_file_is_refused_before_anything_is_loaded(file, tmp_path):
    with pytest.raises(PreconditionFailed, match=r"DRAFT_MODEL_PATH is .* which is not a file"):
        loader(file, tmp_path / "none.gguf")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [({"drafting": False}, "DRAFTING is false"), ({"model_path": "none", "default_model": ""}, "MODEL_PATH is none")],
)
def test_a_draft_model_without_a_use_is_a_mistake(changes, problem):
    with pytest.raises(ValueError, match=problem):
        InferenceSettings(draft_model_path="d.gguf", **changes)
