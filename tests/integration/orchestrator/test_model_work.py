"""What models do outside of executions: vectors, relevance and counts, with what they cost."""

from dataclasses import replace

import pytest

from pagantic.common.v1 import message_pb2
from pagantic.inference.v1 import generation_pb2, inference_service_pb2
from pagantic.orchestrator.v1 import budget_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.client import AsyncClient
from pagantic_common.domain.errors import ErrorCode, InvalidRequest, Overloaded, PermissionDenied
from pagantic_common.rpc.call import call_unary
from services.orchestrator.adapters.access.cedar_policy import CedarPolicy
from services.orchestrator.app.policy.permit import Permit
from services.orchestrator.app.running.models import MAX_RERANKED, TEXTS_OF_A_CALL
from services.orchestrator.core.admission.budget import MESSAGE_TOKENS
from services.orchestrator.core.cost import Prices
from tests.support.orchestrator_app import orchestrator
from tests.support.scripted_services import ScriptedInference, scripted_services

DAY = budget_pb2.BUDGET_PERIOD_DAY
ONE = Prices(prompt_usd=1000.0, cached_prompt_usd=1000.0, output_usd=0.0)


async def ask(stub, method, request):
    return await call_unary("orchestrator", getattr(stub, method), request, 10)


async def embed(stub, *texts, model=""):
    return await ask(stub, "Embed", inference_service_pb2.EmbedRequest(model=model, texts=texts))


async def rerank(stub, query, *texts, **fields):
    return await ask(stub, "Rerank", pb.RerankRequest(query=query, texts=texts, **fields))


async def totals(stub):
    return list((await ask(stub, "GetUsage", pb.GetUsageRequest())).totals)


async def set_budget(stub, **limits):
    await ask(stub, "SetBudget", pb.SetBudgetRequest(period=DAY, **limits))


async def granted(stub):
    """Return what the budget has spent, once this orchestrator holds nothing of it."""
    await stub.budgets.stop()
    return (await ask(stub, "GetBudget", pb.GetBudgetRequest())).budget


async def test_texts_become_vectors_and_count_as_usage_of_the_model_that_made_them(tmp_path):
    inference = ScriptedInference()
    async with orchestrator(tmp_path, scripted_services(inference), prices={"embedder": ONE}) as stub:
        response = await embed(stub, "one two", "three")
        [total] = await totals(stub)
    assert inference.embedded == [(("one two", "three"), "embedder")]
    assert [len(embedding.values) for embedding in response.embeddings] == [3, 3]
    assert response.usage.prompt_tokens == 7
    assert (total.model, total.requests, total.prompt_tokens, total.session_id) == ("embedder", 1, 7, "")
    assert total.cost_usd == pytest.approx(0.007)


async def test_prompt_tokens_are_charged_to_the_budget_and_no_more(tmp_path):
    async with orchestrator(tmp_path, scripted_services()) as stub:
        await set_budget(stub, max_tokens=10_000)
        await embed(stub, "one two", "three")
        await rerank(stub, "blue", "a blue car", "a red car")
        assert (await granted(stub)).granted_tokens == 7 + 20


async def test_money_of_vectors_is_limited_by_the_price_of_their_model(tmp_path):
    async with orchestrator(tmp_path, scripted_services(), prices={"embedder": ONE}) as stub:
        await set_budget(stub, max_cost_usd=1.0)
        await embed(stub, "one two", "three")
        assert (await granted(stub)).granted_cost_usd == pytest.approx(0.007)


async def test_what_may_not_fit_the_budget_is_refused_before_a_model_reads_it(tmp_path):
    inference = ScriptedInference()
    async with orchestrator(tmp_path, scripted_services(inference)) as stub:
        await set_budget(stub, max_tokens=2 * MESSAGE_TOKENS)
        for asking in (embed(stub, "a" * 80), rerank(stub, "q" * 80, "text")):
            with pytest.raises(Overloaded) as caught:
                await asking
            assert caught.value.code is ErrorCode.QUOTA_BUDGET
        assert (await embed(stub, "short")).usage.prompt_tokens == 3
    assert [texts for texts, _ in inference.embedded] == [("short",)]
    assert not inference.scored_pairs


async def test_texts_are_ordered_by_relevance_and_the_best_are_returned(tmp_path):
    texts = ("a red car", "a blue car", "a dog")
    async with orchestrator(tmp_path, scripted_services()) as stub:
        every = await rerank(stub, "blue car", *texts)
        best = await rerank(stub, "blue car", *texts, top_n=1)
        [total] = await totals(stub)
    assert [result.index for result in every.results] == [1, 0, 2]
    assert every.results[1].relevance_score == 0.5
    assert list(best.results) == list(every.results)[:1]
    assert best.usage.prompt_tokens == 30, "every text was read"
    assert (total.model, total.requests, total.prompt_tokens) == ("pairs", 2, 60)


async def test_many_texts_are_scored_in_several_calls_and_what_one_used_before_another_failed_counts(tmp_path):
    inference = ScriptedInference()
    score_pairs, texts = inference.score_pairs, [f"text {number}" for number in range(TEXTS_OF_A_CALL + 1)]

    async def fail_later(query, some, model):
        if inference.scored_pairs:
            raise Overloaded("the queue is full", code=ErrorCode.INFERENCE_OVERLOADED)
        return await score_pairs(query, some, model)

    async with orchestrator(tmp_path, scripted_services(inference)) as stub:
        response = await rerank(stub, f"{TEXTS_OF_A_CALL}", *texts)
        assert response.results[0].index == TEXTS_OF_A_CALL
        assert [len(some) for _, some, _ in inference.scored_pairs] == [TEXTS_OF_A_CALL, 1]
        inference.scored_pairs.clear()
        inference.score_pairs = fail_later
        with pytest.raises(Overloaded):
            await rerank(stub, "words", *texts)
        [total] = await totals(stub)
    assert total.prompt_tokens == response.usage.prompt_tokens + 10 * TEXTS_OF_A_CALL


@pytest.mark.parametrize(
    ("count", "top_n", "message"),
    [
        (0, 0, f"texts has 0 entries: send 1 to {MAX_RERANKED}"),
        (MAX_RERANKED + 1, 0, f"texts has {MAX_RERANKED + 1} entries, at most {MAX_RERANKED} are taken"),
        (1, -1, "top_n is -1: send 0 for all results"),
    ],
)
async def test_texts_that_cannot_be_ordered_are_refused(tmp_path, count, top_n, message):
    async with orchestrator(tmp_path, scripted_services()) as stub:
        with pytest.raises(InvalidRequest, match=message):
            await rerank(stub, "words", *["text"] * count, top_n=top_n)
        assert not await totals(stub)


async def test_without_a_cross_encoder_the_error_says_what_to_configure(tmp_path):
    inference = ScriptedInference()
    inference.cross_encoders = ()
    async with orchestrator(tmp_path, scripted_services(inference)) as stub:
        with pytest.raises(InvalidRequest, match="GGUF file of one to PAGANTIC_INFERENCE_MODELS") as caught:
            await rerank(stub, "words", "text")
    assert caught.value.code is ErrorCode.CONFIG_NO_ENGINE


async def test_a_model_that_the_tenant_may_not_use_neither_embeds_nor_ranks_nor_counts(tmp_path):
    file = tmp_path / "policies.cedar"
    file.write_text(
        'permit(principal, action == Action::"infer", resource);'
        + "".join(
            f'@id("no {name}") forbid(principal, action == Action::"infer", resource == Model::"{name}");'
            for name in ("embedder", "pairs", "scripted")
        )
    )
    services = scripted_services()
    count = inference_service_pb2.CountTokensRequest(model="scripted", texts=["one"])
    async with orchestrator(tmp_path, replace(services, around=(Permit(CedarPolicy(file)),))) as stub:
        for asking in (
            embed(stub, "one", model="embedder"),
            rerank(stub, "one", "two", model="pairs"),
            ask(stub, "CountTokens", count),
        ):
            with pytest.raises(PermissionDenied) as caught:
                await asking
            assert caught.value.code is ErrorCode.AUTH_POLICY
        for asking in (embed(stub, "one"), rerank(stub, "one", "two")):
            with pytest.raises(InvalidRequest, match="no model that you may use") as refused:
                await asking
            assert refused.value.code is ErrorCode.CONFIG_NO_ENGINE


async def test_no_more_runs_than_may(tmp_path):
    async with orchestrator(tmp_path, scripted_services(), max_running=0) as stub:
        count = inference_service_pb2.CountTokensRequest(texts=["one"])
        for asking in (embed(stub, "one"), rerank(stub, "one", "two"), ask(stub, "CountTokens", count)):
            with pytest.raises(Overloaded, match="the limit is 0"):
                await asking


async def test_the_tokens_of_texts_and_of_a_conversation_are_counted_and_cost_nothing(tmp_path):
    chat = generation_pb2.ChatPrompt(
        messages=[message_pb2.Message(role=message_pb2.ROLE_USER, content="one two")],
        tools=[message_pb2.ToolDefinition(name="clock", parameters_json="{}")],
    )
    inference = ScriptedInference()
    async with orchestrator(tmp_path, scripted_services(inference)) as stub:
        request = inference_service_pb2.CountTokensRequest(texts=["a b", "c"], chat=chat)
        response = await ask(stub, "CountTokens", request)
        assert not await totals(stub)
    assert (list(response.text_tokens), response.chat_tokens, response.context_window) == ([2, 1], 3, 8192)
    assert not response.is_estimate


async def test_the_client_splits_many_texts_and_takes_no_single_one(tmp_path):
    inference = ScriptedInference()
    texts = [f"text {number}" for number in range(130)]
    async with (
        orchestrator(tmp_path, replace(scripted_services(), inference=inference)) as stub,
        AsyncClient(stub.address) as client,
    ):
        response = await client.embed(texts)
        ranked = await client.rerank("7", texts[:10], top_n=2)
        counted = await client.count_tokens(["one two"])
        with pytest.raises(TypeError, match="put it into a list"):
            await client.embed("text")
    assert [text for some, _ in inference.embedded for text in some] == texts
    assert [len(some) for some, _ in inference.embedded] == [64, 64, 2]
    assert (len(response.embeddings), response.usage.prompt_tokens) == (130, 520)
    assert [result.index for result in ranked.results] == [7, 0]
    assert list(counted.text_tokens) == [2]
