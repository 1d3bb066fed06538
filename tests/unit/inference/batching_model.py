"""Drives a Scheduler with a ScriptedEngine, as the engine's loop does, and keeps what it says."""

from dataclasses import replace
from itertools import takewhile

import numpy as np

from pagantic_common.testing.scripted_engine import ScriptedEngine, random_logits
from services.inference.app.cell_operations import apply_operation
from services.inference.core.decoding.output import SampledOutput
from services.inference.core.generation import Sampling
from services.inference.core.scheduling.batching import Limits, Scheduler
from services.inference.core.scheduling.branches import DecodeRequest, Ended, Failed, Finished, Progress
from services.inference.core.scheduling.drafting import PromptLookup
from services.inference.core.scheduling.prefix_tree import PrefixTree
from services.inference.core.scheduling.stored_blocks import Saving, name_blocks, root_of

ROOT = root_of("the scripted engine")
WARM = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


class Bench:
    """A scheduler, its engine and the record of what happened."""

    def __init__(
        self,
        *,
        engine=None,
        step_tokens=16,
        prompt_steps=1,
        mixes_steps=True,
        max_running=8,
        queue_capacity=100,
        capacity=400,
        sequences=16,
        idle=100,
        parked=0,
        memo=0,
        costs=None,
        weights=None,
        block=None,
        stored=None,
        drafts=None,
    ):
        self.engine = engine or ScriptedEngine(
            logits_of=random_logits, kv_capacity_tokens=capacity, max_sequences=sequences
        )
        tree = PrefixTree(
            capacity_tokens=capacity, max_sequences=sequences, max_idle_tokens=idle, max_parked_tokens=parked
        )
        saving = Saving(ROOT, block_tokens=block) if block else None
        self.drafts = drafts
        draft_model = drafts.model if drafts else None
        limits = Limits(
            step_tokens, max_running, queue_capacity, memo, weights or {}, prompt_steps * step_tokens, mixes_steps
        )
        self.scheduler = Scheduler(tree, limits, saving, draft_model)
        self.block = block
        self.stored = {} if stored is None else stored
        self.adopted = 0
        self.costs = costs
        self.now = 0.0
        self.steps = 0
        self.events = []
        self.trace = []

    def submit(self, prompt, *, seeds=(0,), max_tokens=8, sampling=WARM, **more):
        draws = tuple(np.random.Generator(np.random.Philox(key=seed)).random for seed in seeds)
        output = SampledOutput(
            vocabulary=self.engine.vocabulary,
            sampling=sampling,
            max_tokens=max_tokens,
            prompt_tokens=prompt,
            matcher=more.pop("matcher", None),
            stop=more.pop("stop", ()),
        )
        drafter = PromptLookup(prompt) if more.pop("may_look_up", more.get("may_draft", False)) else None
        request = DecodeRequest(
            tokens=tuple(prompt), output=output, draws=draws, max_tokens=max_tokens, drafter=drafter, **more
        )
        if self.block:
            request = self.bring_back(request)
        return self.scheduler.submit(request)

    def bring_back(self, request):
        """Return the request with the names of its blocks, after those that are stored were adopted."""
        blocks = name_blocks(
            ROOT,
            request.tokens,
            tenant=request.tenant,
            shared_tokens=request.shared_tokens,
            block_tokens=self.block,
        )
        request = replace(request, blocks=blocks)
        pieces = [self.stored[name] for name in takewhile(self.stored.__contains__, blocks.names)]
        if len(pieces) * self.block > self.scheduler.kept_tokens(request):
            self.adopted += self.scheduler.adopt(request, pieces)
        return request

    def step(self):
        plan = self.scheduler.decide(self.now)
        self.events += plan.events
        for operation in plan.operations:
            apply_operation(self.engine, operation, lambda name, copy: self.stored.__setitem__(name, copy()))
        if self.drafts:
            plan = self.drafts.draft(plan)
        self.trace.append((plan.operations, plan.slices))
        assert all(part.tokens for part in plan.slices)
        if plan.slices:
            self.steps += 1
            rows = sum(len(part.tokens) for part in plan.slices)
            cost = self.costs(rows) if self.costs else 0.0
            self.events += self.scheduler.apply(plan, self.engine.decode(plan.slices), cost)
        assert self.scheduler.tree.used_tokens == self.engine.kv_used_tokens or self.scheduler.tree.operations
        return plan

    def run(self, limit=3000):
        for _ in range(limit):
            if not self.scheduler.has_work:
                return self
            self.step()
        raise AssertionError("the scheduler does not come to an end")

    def text(self, number, candidate=0):
        pieces = [
            e for e in self.events if isinstance(e, Progress) and e.number == number and candidate in e.candidates
        ]
        return "".join(piece.text for piece in pieces)

    def of(self, kind, number=None):
        return [e for e in self.events if isinstance(e, kind) and number in (None, e.number)]

    def outcomes(self):
        return {e.number: type(e) for e in self.events if isinstance(e, Finished | Failed)}

    def ends(self):
        return [(e.number, e.candidate) for e in self.events if isinstance(e, Ended)]


def alone(prompt, seed=0, **more):
    """Return what one candidate says when nothing else runs."""
    bench = Bench()
    number = bench.submit(prompt, seeds=(seed,), **more)
    return bench.run().text(number)
