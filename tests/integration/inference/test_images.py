"""Images under the bundled model, with an image encoder of random weights: what an image does, not what it shows."""

import asyncio
import base64
import ctypes
from contextlib import AsyncExitStack

import llama_cpp
import numpy as np
import pytest
from llama_cpp import mtmd_cpp

from pagantic.inference.v1 import generation_pb2
from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic_common.client import user_message
from pagantic_common.domain.errors import ErrorCode, InvalidRequest, PreconditionFailed
from pagantic_common.domain.images import media_type_of
from pagantic_common.domain.messages import ModelInfo
from pagantic_common.rpc.call import call_stream, call_unary
from pagantic_common.workers.thread_workers import ThreadWorkers
from services.inference.adapters.default_model import find_default_model
from services.inference.adapters.llama.cache import EngineOptions
from services.inference.adapters.llama.engine import LlamaCppEngine
from services.inference.adapters.llama.tokenizer import LlamaTokenizer
from services.inference.adapters.llama.weights import load_model
from services.inference.adapters.prompts.image_decoding import decode_image
from services.inference.adapters.prompts.jinja_chat_template import JinjaChatTemplate
from services.inference.adapters.prompts.mtmd_encoder import MtmdEncoder
from services.inference.core.tuning import Tuning
from services.inference.settings import InferenceSettings
from services.inference.wiring.model_loading import ModelLoader
from services.inference.wiring.remote_models import make_models
from services.inference.wiring.text_generation import AllWorkers, open_image_workers
from tests.support.sample_images import GIF, OTHER_GIF, PNG, sample_image
from tests.support.tiny_gemma import write_tiny_gemma
from tests.support.tiny_projector import IMAGE_TOKENS, write_tiny_projector
from tests.support.tiny_qwen_vl import write_tiny_qwen_vl

TOKENS = 12
QUESTION = "What is this?"


def settings_of(projector="", **fields):
    return InferenceSettings(
        port=0, context_tokens=1024, drafting=False, embedding_model="none", projector_path=str(projector), **fields
    )


@pytest.fixture
def projector(tmp_path):
    return write_tiny_projector(tmp_path / "mmproj.gguf")


@pytest.fixture
async def open_stub(stub_of):
    """Gives a function that serves the bundled model with a projector, and returns a stub."""
    async with AsyncExitStack() as stack:

        async def start(projector="", step_tokens=64, **fields):
            settings = settings_of(projector, **fields)
            decoding = await stack.enter_async_context(open_image_workers(8))
            workers = AllWorkers(ThreadWorkers(), decoding)
            loader = ModelLoader(settings, find_default_model(), workers)
            loader.set_options(Tuning(threads=1, step_tokens=step_tokens), use_extra_bufts=True)
            return await stub_of(make_models(settings, loader))

        yield start


@pytest.fixture
async def stub(open_stub, projector):
    return await open_stub(projector)


def prompt(*parts):
    return generation_pb2.ChatPrompt(messages=[user_message(*parts)])


async def ask(stub, *parts, **fields):
    """Return the text and the usage of a greedy answer."""
    request = pb.InferRequest(chat=prompt(*parts), max_tokens=TOKENS, **fields)
    request.sampling.temperature = 0
    events = [event async for event in call_stream("inference", stub.Infer, request, 60.0)]
    text = "".join(event.delta.content for event in events if event.HasField("delta"))
    return text, events[-1].completed.usage


def library_answer(projector, name):
    """Return the greedy answer of llama.cpp's own functions: they tokenize, encode and decode the whole prompt."""
    model = load_model(find_default_model(), gpu_layers=0, use_extra_bufts=True)
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_threads, params.n_threads_batch = 1024, 512, 1, 1
    params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    context = llama_cpp.llama_init_from_model(model, params)
    seeing = mtmd_cpp.mtmd_context_params_default()
    seeing.use_gpu, seeing.n_threads, seeing.warmup, seeing.print_timings = False, 1, False, False
    encoder = mtmd_cpp.mtmd_init_from_file(str(projector).encode(), model, seeing)
    tokenizer = LlamaTokenizer(llama_cpp.llama_model_get_vocab(model))
    source = llama_cpp.llama_model_chat_template(model, None).decode()
    template = JinjaChatTemplate(source, bos_token="", eos_token="")
    rendered = template.render([{"role": "user", "content": f"<__media__>{QUESTION}"}], []).encode()
    media_type = media_type_of(sample_image(name))
    width, height, pixels = decode_image(media_type, base64.b64encode(sample_image(name)).decode())
    rgb = (ctypes.c_uint8 * (width * height * 3)).from_buffer_copy(base64.b64decode(pixels))
    text = mtmd_cpp.mtmd_input_text(text=rendered, text_len=len(rendered), add_special=False, parse_special=True)
    chunks, bitmap = mtmd_cpp.mtmd_input_chunks_init(), mtmd_cpp.mtmd_bitmap_init(width, height, rgb)
    assert mtmd_cpp.mtmd_tokenize(encoder, chunks, ctypes.byref(text), (ctypes.c_void_p * 1)(bitmap), 1) == 0
    end = ctypes.c_int32()
    assert mtmd_cpp.mtmd_helper_eval_chunks(encoder, context, chunks, 0, 0, 512, True, ctypes.byref(end)) == 0
    said = []
    while len(said) < TOKENS:
        row = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, -1), shape=(tokenizer.size,))
        token = int(row.argmax())
        if llama_cpp.llama_vocab_is_eog(tokenizer.vocab, token):
            break
        said.append(token)
        batch = llama_cpp.llama_batch_get_one((ctypes.c_int32 * 1)(token), 1)
        assert llama_cpp.llama_decode(context, batch) == 0
    mtmd_cpp.mtmd_input_chunks_free(chunks)
    mtmd_cpp.mtmd_bitmap_free(bitmap)
    mtmd_cpp.mtmd_free(encoder)
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return tokenizer.detokenize(said, with_special=False).decode()


async def test_an_answer_depends_on_the_image_and_on_nothing_else(stub):
    icon, _ = await ask(stub, sample_image(PNG), QUESTION)
    banner, _ = await ask(stub, sample_image(GIF), QUESTION)
    nothing, _ = await ask(stub, QUESTION)
    assert len({icon, banner, nothing}) == 3
    assert (await ask(stub, sample_image(PNG), QUESTION))[0] == icon
    assert (await ask(stub, sample_image(GIF), QUESTION))[0] == banner


async def test_the_answer_is_that_of_the_librarys_own_way(stub, projector):
    assert (await ask(stub, sample_image(PNG), QUESTION))[0] == library_answer(projector, PNG)
    assert (await ask(stub, sample_image(GIF), QUESTION))[0] == library_answer(projector, GIF)


async def test_an_image_that_is_cached_gives_the_answer_of_one_that_is_computed(stub, open_stub, projector):
    first, usage = await ask(stub, sample_image(PNG), QUESTION)
    assert usage.cached_prompt_tokens == 0
    _, usage = await ask(stub, sample_image(PNG), "Where is it from?")
    assert usage.cached_prompt_tokens > IMAGE_TOKENS
    again, usage = await ask(stub, sample_image(PNG), QUESTION)
    assert again == first
    assert usage.cached_prompt_tokens > IMAGE_TOKENS
    fresh = await open_stub(projector)
    await ask(fresh, sample_image(GIF), QUESTION)
    assert (await ask(fresh, sample_image(PNG), QUESTION))[0] == first


async def test_another_image_at_the_same_place_finds_nothing_of_the_first(stub):
    _, usage = await ask(stub, sample_image(PNG), QUESTION)
    before = usage.prompt_tokens - IMAGE_TOKENS
    _, usage = await ask(stub, sample_image(GIF), QUESTION)
    assert usage.cached_prompt_tokens < before


async def test_the_positions_of_an_image_are_prompt_tokens_and_counted_as_such(stub):
    _, without = await ask(stub, QUESTION)
    _, usage = await ask(stub, "Look: ", sample_image(PNG), QUESTION, sample_image(OTHER_GIF))
    counted = await call_unary(
        "inference",
        stub.CountTokens,
        pb.CountTokensRequest(chat=prompt("Look: ", sample_image(PNG), QUESTION, sample_image(OTHER_GIF))),
        30.0,
    )
    assert counted.chat_tokens == usage.prompt_tokens
    assert not counted.is_estimate
    assert usage.prompt_tokens > without.prompt_tokens + 2 * IMAGE_TOKENS


@pytest.mark.parametrize("step_tokens", [9, pytest.param(8, marks=pytest.mark.whole)])
async def test_an_image_is_cut_by_the_steps_as_any_prompt(open_stub, projector, stub, step_tokens):
    cut = await open_stub(projector, step_tokens)
    expected, _ = await ask(stub, "Look: ", sample_image(PNG), QUESTION, sample_image(GIF))
    assert (await ask(cut, "Look: ", sample_image(PNG), QUESTION, sample_image(GIF)))[0] == expected


async def test_requests_with_and_without_images_run_together(stub):
    parts = [(sample_image(PNG), QUESTION), (QUESTION,), (sample_image(GIF), QUESTION), ("Name a color.",)]
    alone = [await ask(stub, *one) for one in parts]
    together = await asyncio.gather(*(ask(stub, *one) for one in parts))
    assert [usage.prompt_tokens for _, usage in together] == [usage.prompt_tokens for _, usage in alone]
    assert all(text for text, _ in together)


async def test_an_image_that_cannot_be_read_fails_its_request_alone(stub):
    damaged = sample_image(PNG)[:200]
    results = await asyncio.gather(
        ask(stub, damaged, QUESTION),
        ask(stub, QUESTION),
        ask(stub, sample_image(PNG), QUESTION),
        return_exceptions=True,
    )
    assert isinstance(results[0], InvalidRequest)
    assert "an image is no image/png that can be read" in str(results[0])
    assert all(usage.output_tokens for _, usage in results[1:])


async def test_votes_read_an_image_once(stub):
    request = pb.InferRequest(chat=prompt(sample_image(PNG), QUESTION), max_tokens=4, candidate_count=3)
    events = [event async for event in call_stream("inference", stub.Infer, request, 60.0)]
    usage = events[-1].completed.usage
    assert sum(event.HasField("candidate_end") for event in events) == 3
    assert usage.prompt_tokens < 100


async def test_a_schema_binds_the_answer_to_an_image(open_stub, projector):
    stub = await open_stub(projector)
    constraint = generation_pb2.DecoderConstraint(schema_json='{"enum":["cat","dog"]}')
    text, _ = await ask(stub, sample_image(PNG), QUESTION, constraint=constraint)
    assert text in ('"cat"', '"dog"')


async def test_a_model_without_a_projector_refuses_images(open_stub):
    stub = await open_stub()
    with pytest.raises(InvalidRequest, match="takes no images: leave them out") as refused:
        await ask(stub, sample_image(PNG), QUESTION)
    assert refused.value.code is ErrorCode.CONFIG_NO_ENGINE
    with pytest.raises(InvalidRequest, match="takes no images"):
        await call_unary(
            "inference", stub.CountTokens, pb.CountTokensRequest(chat=prompt(sample_image(PNG), QUESTION)), 30.0
        )
    (model,) = (await call_unary("inference", stub.ListModels, pb.ListModelsRequest(), 10.0)).models
    assert "images" not in model.capabilities


async def test_a_model_with_a_projector_says_so(stub):
    (model,) = (await call_unary("inference", stub.ListModels, pb.ListModelsRequest(), 10.0)).models
    assert "images" in model.capabilities


async def test_a_text_cannot_stand_for_an_image(stub):
    text, usage = await ask(stub, "\ue003<__media__>", sample_image(PNG), QUESTION)
    _, counted = await ask(stub, "<__media__>", sample_image(PNG), QUESTION)
    assert usage.prompt_tokens > counted.prompt_tokens > IMAGE_TOKENS
    assert text


async def test_scores_are_of_text_alone(stub):
    request = pb.ScoreRequest(chat=prompt(sample_image(PNG), QUESTION), continuations=["a"])
    with pytest.raises(InvalidRequest, match="Score reads text alone"):
        await call_unary("inference", stub.Score, request, 30.0)


@pytest.mark.parametrize(
    ("write", "wrong"),
    [
        (lambda path: path.write_bytes(b"GGUF no"), "is no projector of this model"),
        (lambda path: write_tiny_projector(path, dimensions=64), "is no projector of this model"),
        (lambda path: path.mkdir(), "has a projector that is not a file"),
    ],
)
async def test_a_file_that_is_no_projector_of_the_model_ends_the_start(open_stub, tmp_path, write, wrong):
    path = tmp_path / "other.gguf"
    write(path)

    async def start_and_ask():
        await ask(await open_stub(path), QUESTION)

    with pytest.raises(PreconditionFailed, match=wrong) as refused:
        await start_and_ask()
    assert refused.value.code is ErrorCode.CONFIG_NO_ENGINE


@pytest.mark.parametrize(
    ("write_model", "kind", "wrong"),
    [
        (write_tiny_qwen_vl, "mlp", "gives an image positions in two dimensions"),
        (write_tiny_gemma, "gemma3", "needs attention to later positions of an image"),
    ],
)
def test_a_projector_whose_images_are_no_plain_positions_is_refused(tmp_path, write_model, kind, wrong):
    options = EngineOptions(context_tokens=64, kv_tokens=64, max_sequences=1, batch_tokens=8, threads=1)
    engine = LlamaCppEngine(write_model(tmp_path / "model.gguf"), ModelInfo("tiny", 64), options)
    path = write_tiny_projector(tmp_path / "mmproj.gguf", dimensions=32, kind=kind)
    try:
        with pytest.raises(PreconditionFailed, match=wrong) as refused:
            MtmdEncoder(path, engine.weights, threads=1, uses_gpu=False)
    finally:
        engine.close()
    assert refused.value.code is ErrorCode.CONFIG_NO_ENGINE
