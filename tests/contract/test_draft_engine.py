"""What a draft engine promises, held against scripted models and against llama.cpp with the default model."""

import numpy as np
import pytest

from pagantic_common.domain.messages import ModelInfo
from pagantic_common.telemetry.clock import SystemClock
from pagantic_common.testing.scripted_engine import ScriptedEngine
from services.inference.adapters.default_model import find_default_model
from services.inference.adapters.llama.cache import EngineOptions
from services.inference.adapters.llama.engine import LlamaCppEngine
from services.inference.app.cell_operations import apply_operation
from services.inference.app.draft_engine import CacheLimits, DraftEngine
from services.inference.core.decoding.output import SampledOutput
from services.inference.core.generation import Sampling
from services.inference.core.scheduling.batch import Slice
from services.inference.core.scheduling.batching import Limits, Scheduler
from services.inference.core.scheduling.branches import DecodeRequest, Failed, Progress
from services.inference.core.scheduling.prefix_tree import PrefixTree
from tests.support.examples import sample
from tests.support.fixed_drafts import FixedDepth

PROMPTS = ("The capital of France is", "Once upon a time there was", "To boil an egg, you")
CELLS = 512
DEPTH = 3


@pytest.fixture(scope="module")
def real_engines():
    options = EngineOptions(context_tokens=CELLS, kv_tokens=CELLS, max_sequences=16, batch_tokens=64, threads=1)
    engine = LlamaCppEngine(find_default_model(), ModelInfo("real", CELLS), options)
    draft = engine.beside(options)
    yield engine, draft
    draft.close()
    engine.close()


@pytest.fixture(params=["scripted", "llama.cpp"])
def engines(request):
    """A model, and the same one to draft for it; both have nothing in their caches."""
    if request.param == "scripted":
        script = "hello, hello again, and more of the same words for everybody who has asked for them"
        return tuple(ScriptedEngine(script, kv_capacity_tokens=CELLS, max_sequences=16) for _ in range(2))
    engines = request.getfixturevalue("real_engines")
    for sequence_id in range(16):
        for engine in engines:
            engine.truncate(sequence_id, 0)
    return engines


class Decoding:
    """A scheduler with a draft engine, driven as the engine's loop drives them; keeps the drafts and what is said."""

    def __init__(self, engine, draft):
        self.engine = engine
        limits = CacheLimits(max_parked_bytes=0)
        self.drafts = DraftEngine(
            draft,
            vocabulary_size=engine.vocabulary.size,
            limits=limits,
            clock=SystemClock(),
            policy=FixedDepth(DEPTH),
        )
        self.drafts.measure()
        tree = PrefixTree(capacity_tokens=engine.kv_capacity_tokens, max_sequences=16, max_idle_tokens=0)
        self.scheduler = Scheduler(tree, Limits(64, 8, 8), draft_model=self.drafts.model)
        self.said = {}
        self.drafted = []

    def submit(self, text, *, max_tokens=24, temperature=0.0):
        tokens = self.engine.tokenize(text, add_special=False, parse_special=False)
        output = SampledOutput(
            vocabulary=self.engine.vocabulary, sampling=Sampling(temperature=temperature), max_tokens=max_tokens
        )
        draws = (np.random.Generator(np.random.Philox(key=3)).random,)
        request = DecodeRequest(tuple(tokens), output, draws, max_tokens, may_draft=True, reports_tokens=True)
        number = self.scheduler.submit(request)
        self.said[number] = list(tokens)
        return number

    def step(self):
        plan = self.scheduler.decide(0.0)
        for operation in plan.operations:
            apply_operation(self.engine, operation, lambda _name, _copy: None)
        if not plan.slices:
            return
        plan = self.drafts.draft(plan)
        self.drafted += [(list(item.branch.tokens), item.draft) for item in plan.work if item.is_guessed]
        for event in self.scheduler.apply(plan, self.engine.decode(plan.slices)):
            assert not isinstance(event, Failed)
            if isinstance(event, Progress):
                self.said[event.number] += event.tokens

    def run(self):
        while self.scheduler.has_work:
            self.step()
        self.step()  # it applies the last operations
        assert not self.drafts.model.is_off
        return self


def test_a_model_that_drafts_for_itself_is_nearly_always_right(engines):
    decoding = Decoding(*engines)
    for text in PROMPTS:
        decoding.submit(text)
    decoding.run()
    count = decoding.scheduler.guessed
    assert count.drafted >= 30
    assert count.accepted >= 0.8 * count.drafted  # the last drafts reach beyond the ends


@pytest.mark.sampled
def test_drafts_are_what_the_draft_model_says_after_the_tokens_whatever_was_refused_before(engines):
    engine, draft = engines
    decoding = Decoding(engine, draft)
    cancelled = decoding.submit(PROMPTS[0], max_tokens=40, temperature=1.5)
    for text in PROMPTS[1:]:
        decoding.submit(text, temperature=1.5)
    for _ in range(4):
        decoding.step()
    decoding.scheduler.cancel(cancelled)
    decoding.run()
    assert len(decoding.said[cancelled]) < 40
    for sequence_id in range(16):
        draft.truncate(sequence_id, 0)
    same = total = 0
    for tokens, guesses in sample(decoding.drafted, 4):
        rows = draft.decode([Slice(0, tokens + guesses[:-1], 0, len(guesses))])
        same += sum(int(row.argmax()) == guess for row, guess in zip(rows, guesses, strict=True))
        total += len(guesses)
        draft.truncate(0, 0)
    assert total >= 12
    assert same >= 0.9 * total  # logits move a little with the shape of a batch
