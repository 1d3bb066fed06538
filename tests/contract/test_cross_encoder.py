"""What every CrossEncoder promises, held against the scripted one and against llama.cpp with a BERT and a Qwen3.

The BERT is also held against its definition, computed in numpy. The differences are those of numbers with 16 bits.
"""

import numpy as np
import pytest

from pagantic_common.domain.errors import ErrorCode, PreconditionFailed
from pagantic_common.domain.messages import ModelInfo
from services.inference.adapters.conversion import EPSILON, HEADS
from services.inference.adapters.llama.embedder import EmbedderOptions, LlamaCppCrossEncoder, LlamaCppEmbedder
from services.inference.adapters.model_file import describe_model
from services.inference.core.pairs import PairLayout
from tests.support.bert_forward import BertClassifier
from tests.support.cross_encoder import write_cross_encoder
from tests.support.scripted_cross_encoder import ScriptedCrossEncoder
from tests.support.tiny_bert import MEAN, RANK, WINDOW, write_tiny_bert
from tests.support.tiny_qwen import END_ID, write_tiny_qwen

QUERY = "when does the harbour close"
TEXTS = ["the harbour closes at nine", "bread", "", "cats sleep for most of the day"]
CLS, SEP = 101, 102
TOLERANCE = 0.02


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("cross-encoder") / "cross-encoder.gguf"
    return path, BertClassifier(write_cross_encoder(path), heads=HEADS, epsilon=EPSILON)


@pytest.fixture(scope="module")
def bert(written):
    path, _definition = written
    info = describe_model(path, alias="bert", context_tokens=4096)
    cross_encoder = LlamaCppCrossEncoder(path, info, EmbedderOptions(max_texts=8))
    yield cross_encoder
    cross_encoder.close()


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    path = write_tiny_qwen(tmp_path_factory.mktemp("qwen") / "qwen.gguf")
    info = describe_model(path, alias="qwen", context_tokens=4096)
    cross_encoder = LlamaCppCrossEncoder(path, info, EmbedderOptions(max_texts=8))
    yield cross_encoder
    cross_encoder.close()


@pytest.fixture(params=["scripted", "bert", "qwen"])
def cross_encoder(request):
    return ScriptedCrossEncoder() if request.param == "scripted" else request.getfixturevalue(request.param)


def pair(cross_encoder, query, text):
    query, text = (cross_encoder.tokenize(part, add_special=False, parse_special=False) for part in (query, text))
    return cross_encoder.pair_layout.join(query, text, cross_encoder.model.context_window)


def test_a_pair_has_the_same_score_alone_and_in_company(cross_encoder):
    pairs = [pair(cross_encoder, "red", text) for text in ("reed", "", "blue")]
    together = cross_encoder.embed(pairs)
    alone = np.concatenate([cross_encoder.embed([tokens]) for tokens in pairs])
    assert together.shape == (len(pairs), 1)
    assert together == pytest.approx(alone, abs=TOLERANCE)
    assert len(np.unique(np.round(together, 1))) > 1


def test_the_order_of_query_and_text_counts(cross_encoder):
    scores = cross_encoder.embed([pair(cross_encoder, "cat", "doges"), pair(cross_encoder, "doges", "cat")])
    assert abs(scores[0, 0] - scores[1, 0]) > TOLERANCE


def test_a_text_that_is_cut_fills_the_window(cross_encoder):
    tokens = pair(cross_encoder, "red", "red green blue " * 1000)
    assert len(tokens) == cross_encoder.model.context_window
    assert tokens[-1:] == list(cross_encoder.pair_layout.after)
    assert np.isfinite(cross_encoder.embed([tokens])).all()


def test_it_is_described_by_what_it_can_do(cross_encoder):
    assert cross_encoder.model.capabilities == ("score_pairs",)


def test_special_tokens_stand_around_query_and_text(bert):
    assert bert.pair_layout == PairLayout((CLS,), (SEP,), (SEP,))


def test_the_template_of_a_qwen_stands_around_query_and_text_as_if_it_were_one_text(qwen):
    before, between, after = (ord("q"), ord(":")), (ord(" "), ord("d"), ord(":")), (END_ID,)
    assert qwen.pair_layout == PairLayout(before, between, after, " ", " ")
    whole = qwen.tokenize("q: a d: a b<|im_end|>", add_special=False, parse_special=True)
    assert pair(qwen, " a", " a b") == whole


def test_a_text_that_spells_the_end_of_a_template_does_not_end_it(qwen):
    assert pair(qwen, " a", " b<|im_end|>").count(END_ID) == 1


def test_the_score_of_a_qwen_is_the_logarithm_of_the_odds_of_yes(qwen):
    tokens = pair(qwen, " cat", " dog")
    ((yes, no),) = LlamaCppEmbedder.embed(qwen, [tokens])
    assert yes + no == pytest.approx(1, abs=1e-5)
    ((score,),) = qwen.embed([tokens])
    assert 1 / (1 + np.exp(-score)) == pytest.approx(yes, abs=1e-5)


@pytest.mark.parametrize("text", [*TEXTS, "the harbour closes at nine " * 60], ids=range(5))
def test_scores_are_those_of_the_definition(written, bert, text):
    _path, definition = written
    tokens = pair(bert, QUERY, text)
    ((score,),) = bert.embed([tokens])
    assert score == pytest.approx(definition.score(tokens), abs=TOLERANCE)


def test_the_engine_gives_every_token_the_first_type(written, bert):
    _path, definition = written
    tokens = pair(bert, QUERY, TEXTS[0])
    types = [int(position > tokens.index(SEP)) for position in range(len(tokens))]
    ((score,),) = bert.embed([tokens])
    assert abs(definition.score(tokens, types) - score) > 10 * TOLERANCE


@pytest.mark.parametrize(("adds_end", "adds_separator"), [(True, True), (False, True), (True, False)])
def test_the_file_says_which_special_tokens_are_added(tmp_path, adds_end, adds_separator):
    flags = {"tokenizer.ggml.add_eos_token": adds_end, "tokenizer.ggml.add_sep_token": adds_separator}
    path = write_tiny_bert(tmp_path / "tiny.gguf", pooling=RANK, metadata=flags)
    cross_encoder = LlamaCppCrossEncoder(path, ModelInfo("tiny", WINDOW), EmbedderOptions())
    cross_encoder.close()
    assert cross_encoder.pair_layout == PairLayout((2,), (3,) * (adds_end + adds_separator), (3,) * adds_end)


def test_a_template_of_the_file_joins_the_pair(tmp_path):
    template = {"tokenizer.chat_template.rerank": "[CLS]red: {query}[SEP]green {document}[SEP]"}
    path = write_tiny_bert(tmp_path / "tiny.gguf", pooling=RANK, metadata=template)
    cross_encoder = LlamaCppCrossEncoder(path, ModelInfo("tiny", WINDOW), EmbedderOptions())
    layout = cross_encoder.pair_layout
    cross_encoder.close()
    assert (layout.before[:2], layout.between, layout.after) == ((2, 5), (3, 6), (3,))
    assert (layout.query_lead, layout.text_lead) == (" ", " ")


def test_a_template_without_a_place_for_the_query_is_refused(tmp_path):
    template = {"tokenizer.chat_template.rerank": "{document} [SEP]"}
    path = write_tiny_bert(tmp_path / "tiny.gguf", pooling=RANK, metadata=template)
    with pytest.raises(PreconditionFailed, match=r"'tiny' has no \{query\} before a \{document\}") as refused:
        LlamaCppCrossEncoder(path, ModelInfo("tiny", WINDOW), EmbedderOptions())
    assert refused.value.code is ErrorCode.CONFIG_NO_ENGINE


def test_a_head_of_several_outputs_is_refused(tmp_path):
    path = write_tiny_bert(tmp_path / "tiny.gguf", pooling=RANK, labels=("one", "two", "three"))
    with pytest.raises(PreconditionFailed, match="'tiny' has 3 outputs") as refused:
        LlamaCppCrossEncoder(path, ModelInfo("tiny", WINDOW), EmbedderOptions())
    assert refused.value.code is ErrorCode.CONFIG_NO_ENGINE


def test_a_file_without_a_head_is_refused(tmp_path):
    path = write_tiny_bert(tmp_path / "tiny.gguf", pooling=RANK, has_head=False)
    with pytest.raises(PreconditionFailed, match=r"'tiny' scores pairs .* no classification head") as refused:
        describe_model(path, alias="tiny", context_tokens=64)
    assert refused.value.code is ErrorCode.CONFIG_NO_ENGINE


def test_an_embedding_model_is_no_cross_encoder(tmp_path):
    path = write_tiny_bert(tmp_path / "tiny.gguf", pooling=MEAN)
    with pytest.raises(PreconditionFailed, match="its pooling is not rank"):
        LlamaCppCrossEncoder(path, ModelInfo("tiny", WINDOW), EmbedderOptions())
