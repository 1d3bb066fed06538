"""What a draft model buys: tokens per second with and without it, acceptance, and whether the words stay.

`python -m tests.bench.drafting --model BIG.gguf --draft SMALL.gguf` decodes questions about Python's standard library,
and continues its functions, in this process: without the draft model, with it as it is served, and with drafts of one
length whatever they cost. With `--check`, it compares greedy tokens that were drafted with the same tokens decoded one
by one, in batches of the same number of rows.
"""

from __future__ import annotations

import argparse
import inspect
import statistics
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType

import numpy as np

from pagantic_common.domain.messages import Message, ModelInfo, Role
from pagantic_common.telemetry.clock import SystemClock
from services.inference.adapters.llama.cache import EngineOptions
from services.inference.adapters.llama.engine import LlamaCppEngine
from services.inference.adapters.llama.tokenizer import LlamaTokenizer, common_tokens
from services.inference.adapters.prompts.jinja_chat_template import JinjaChatTemplate
from services.inference.app.cell_operations import apply_operation
from services.inference.app.draft_engine import CacheLimits, DraftEngine
from services.inference.app.prepared_request import PromptTokenizer
from services.inference.core.decoding.output import SampledOutput
from services.inference.core.decoding.sampling import Logits
from services.inference.core.generation import ChatPrompt, Sampling
from services.inference.core.scheduling.batch import Slice
from services.inference.core.scheduling.batching import Limits, Scheduler
from services.inference.core.scheduling.branches import DecodeRequest, Failed, Progress
from services.inference.core.scheduling.draft_worth import DraftPolicy, MeasuredWorth
from services.inference.core.scheduling.drafting import DraftCount, PromptLookup
from services.inference.core.scheduling.prefix_tree import PrefixTree
from tests.support.fixed_drafts import FixedDepth

CONTEXT = 2048
NEVER = -100.0
MODULES = (textwrap, statistics, inspect)


@dataclass(slots=True)
class Run:
    """What a run gave."""

    tokens: int = 0
    decode_s: float = 0.0
    guessed: DraftCount = field(default_factory=DraftCount)
    looked_up: DraftCount = field(default_factory=DraftCount)
    said: dict[int, list[int]] = field(default_factory=dict)
    rows: dict[int, list[int]] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Tokens per second after the first ones."""
        return self.tokens / self.decode_s

    @property
    def acceptance(self) -> float:
        """The share of the draft model's tokens that were right."""
        return self.guessed.accepted / max(1, self.guessed.drafted)


class Decoder:
    """A model, maybe with a draft model, driven as the engine's loop drives them."""

    def __init__(self, engine: LlamaCppEngine, drafts: DraftEngine | None) -> None:
        tree = PrefixTree(capacity_tokens=engine.kv_capacity_tokens, max_sequences=16, max_idle_tokens=0)
        limits = Limits(engine.max_batch_tokens, max_running=8, queue_capacity=64)
        self._engine = engine
        self._drafts = drafts
        self.scheduler = Scheduler(tree, limits, draft_model=drafts.model if drafts is not None else None)

    def run(self, prompts: Sequence[Sequence[int]], *, tokens: int, temperature: float, looks_up: bool) -> Run:
        """Decode so many tokens after each prompt, all at the same time; the time is that after the first tokens."""
        run = Run()
        for prompt in prompts:
            number = self.scheduler.submit(self._request(prompt, tokens, temperature, looks_up=looks_up))
            run.said[number], run.rows[number] = [], []
        guessed, looked_up = self.scheduler.guessed, self.scheduler.looked_up
        before = (guessed.drafted, guessed.accepted, looked_up.drafted, looked_up.accepted)
        begun_s, begun_tokens = 0.0, 0
        while self.scheduler.has_work:
            self._step(run)
            if not begun_s and all(run.said.values()):
                begun_s, begun_tokens = time.perf_counter(), sum(map(len, run.said.values()))
        run.decode_s = time.perf_counter() - begun_s
        run.tokens = sum(map(len, run.said.values())) - begun_tokens
        run.guessed.add(guessed.drafted - before[0], guessed.accepted - before[1])
        run.looked_up.add(looked_up.drafted - before[2], looked_up.accepted - before[3])
        return run

    def _step(self, run: Run) -> None:
        plan = self.scheduler.decide(0.0)
        for operation in plan.operations:
            apply_operation(self._engine, operation, lambda _name, _copy: None)
        if not plan.slices:
            return
        if self._drafts is not None:
            plan = self._drafts.draft(plan)
        started_s = time.perf_counter()
        logits = self._engine.decode(plan.slices)
        events = self.scheduler.apply(plan, logits, time.perf_counter() - started_s)
        rows = sum(len(part.tokens) for part in plan.slices)
        for event in events:
            match event:
                case Failed():
                    raise RuntimeError(event.reason) from event.error
                case Progress():
                    run.said[event.number] += event.tokens
                    run.rows[event.number] += [rows] * len(event.tokens)

    def _request(self, prompt: Sequence[int], tokens: int, temperature: float, *, looks_up: bool) -> DecodeRequest:
        vocabulary = self._engine.vocabulary
        bias = dict.fromkeys(vocabulary.end_tokens, NEVER)
        output = SampledOutput(
            vocabulary=vocabulary,
            sampling=Sampling(temperature=temperature, logit_bias=bias),
            max_tokens=tokens,
            prompt_tokens=prompt,
        )
        return DecodeRequest(
            tokens=tuple(prompt),
            output=output,
            draws=(np.random.Generator(np.random.Philox(key=7)).random,),
            max_tokens=tokens,
            drafter=PromptLookup(prompt) if looks_up else None,
            may_draft=True,
            reports_tokens=True,
        )


def prompts_of(engine: LlamaCppEngine) -> dict[str, list[list[int]]]:
    """Return prompts: questions about functions of the standard library, and their beginnings as raw texts."""
    template = JinjaChatTemplate(engine.chat_template, bos_token=engine.bos_text, eos_token=engine.eos_text)
    tokenizer = PromptTokenizer(engine, template)
    functions = [
        value
        for module in MODULES
        for _, value in sorted(vars(module).items())
        if isinstance(value, FunctionType) and value.__module__ == module.__name__ and value.__doc__
    ]
    questions = [f"What does {one.__module__}.{one.__name__} do in Python? Explain it briefly." for one in functions]
    beginnings = ["".join(inspect.getsourcelines(one)[0][:6]) for one in functions]
    return {
        "chat": [tokenizer.tokenize(ChatPrompt((Message(Role.USER, text),))).tokens for text in questions],
        "code": [tokenizer.tokenize(text).tokens for text in beginnings],
    }


def plain_tokens(engine: LlamaCppEngine, prompt: Sequence[int], rows: Sequence[int]) -> list[int]:
    """Return greedy tokens after a prompt, each decoded alone in a batch of so many rows, of which one counts."""
    said: list[int] = []
    pending, position = list(prompt), 0
    never = sorted(engine.vocabulary.end_tokens)
    while len(said) < len(rows):
        part, pending = pending[: engine.max_batch_tokens], pending[engine.max_batch_tokens :]
        more = 0 if len(part) > 1 else rows[len(said)] - 1
        logits = engine.decode([Slice(0, part + part[-1:] * more, position, 1 + more)])
        position += len(part)
        engine.truncate(0, position)
        if not pending:
            pending = [_best(logits[0], never)]
            said += pending
    engine.truncate(0, 0)
    return said


def _best(row: Logits, never: Sequence[int]) -> int:
    row[never] += NEVER
    return int(row.argmax())


def compare(engine: LlamaCppEngine, drafts: DraftEngine, prompts: Sequence[Sequence[int]], tokens: int) -> None:
    """Print how many drafted tokens equal those that are decoded one by one in batches of the same rows."""
    same = total = 0
    for prompt in prompts:
        run = Decoder(engine, drafts).run([prompt], tokens=tokens, temperature=0.0, looks_up=False)
        (said,), (rows,) = run.said.values(), run.rows.values()
        engine.truncate(0, 0)
        expected = plain_tokens(engine, prompt, rows)
        agreed = next((at for at, pair in enumerate(zip(said, expected, strict=True)) if pair[0] != pair[1]), len(said))
        same += agreed
        total += len(said)
        sys.stdout.write(
            f"{agreed} of {len(said)} tokens are the same in batches of one shape; the draft model guessed "
            f"{run.guessed.accepted} of them right and {run.guessed.drafted - run.guessed.accepted} wrong\n"
        )
        sys.stdout.flush()
    sys.stdout.write(f"in all {same} of {total}\n")


def measure(
    engine: LlamaCppEngine, policies: dict[str, DraftEngine | None], prompts: Sequence[Sequence[int]], given: Given
) -> None:
    """Print tokens per second of each policy, and ratios to the first; runs take turns."""
    for clients in given.clients:
        for temperature in given.temperatures:
            runs: dict[str, list[Run]] = {name: [] for name in policies}
            decoders = {name: Decoder(engine, drafts) for name, drafts in policies.items()}
            for turn in range(given.runs):
                asked = [prompts[(turn * clients + index) % len(prompts)] for index in range(clients)]
                # Every second turn runs them in the other order: the first of a turn may find a cooler processor.
                for name, decoder in list(decoders.items())[:: 1 - 2 * (turn % 2)]:
                    runs[name].append(decoder.run(asked, tokens=given.tokens, temperature=temperature, looks_up=True))
                    apply_rest(engine, decoder)
            _show(f"{clients} clients, temperature {temperature:g}", runs)


def apply_rest(engine: LlamaCppEngine, decoder: Decoder) -> None:
    """Empty the cache, which the next decoder uses, too."""
    for operation in decoder.scheduler.tree.operations:
        apply_operation(engine, operation, lambda _name, _copy: None)
    decoder.scheduler.tree.operations.clear()


def _show(title: str, runs: dict[str, list[Run]]) -> None:
    base = 0.0
    for name, of in runs.items():
        rate = sum(run.tokens for run in of) / sum(run.decode_s for run in of)
        base = base or rate
        guessed, looked_up = DraftCount(), DraftCount()
        for run in of:
            guessed.add(run.guessed.drafted, run.guessed.accepted)
            looked_up.add(run.looked_up.drafted, run.looked_up.accepted)
        sys.stdout.write(
            f"{title:<28} {name:<16} {rate:7.2f} tokens/s ({rate / base:.3f})   draft model "
            f"{guessed.accepted}/{guessed.drafted}, prompt lookup {looked_up.accepted}/{looked_up.drafted}\n"
        )
    sys.stdout.flush()


@dataclass(frozen=True, slots=True)
class Given:
    """What to measure."""

    clients: tuple[int, ...]
    temperatures: tuple[float, ...]
    tokens: int
    runs: int


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument(
        "--depth", type=int, default=3, help="length of the drafts that are made whatever they cost; 0: none"
    )
    parser.add_argument("--prompts", choices=("chat", "code"), default=("chat", "code"), nargs="+")
    parser.add_argument("--clients", type=int, default=(1, 4), nargs="+")
    parser.add_argument("--temperatures", type=float, default=(0.0, 0.7), nargs="+")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--check", type=int, default=0, help="compare greedy tokens after so many prompts, too")
    given = parser.parse_args()
    options = EngineOptions(context_tokens=CONTEXT, kv_tokens=CONTEXT, max_sequences=16, threads=given.threads)
    engine = LlamaCppEngine(given.model, ModelInfo("model", CONTEXT), options)
    draft = LlamaCppEngine(given.draft, ModelInfo("draft", CONTEXT), options)
    shared = common_tokens(LlamaTokenizer(engine.vocab), LlamaTokenizer(draft.vocab))

    def drafts_of(policy: DraftPolicy) -> DraftEngine:
        beside = draft.beside(options)
        drafts = DraftEngine(beside, vocabulary_size=shared, limits=CacheLimits(), clock=SystemClock(), policy=policy)
        drafts.measure()
        return drafts

    prompts = prompts_of(engine)
    for kind in given.prompts if not given.check else ():
        sys.stdout.write(f"{kind}\n")
        wanted = Given(tuple(given.clients), tuple(given.temperatures), given.tokens, given.runs)
        policies: dict[str, DraftEngine | None] = {"plain": None, "as served": drafts_of(MeasuredWorth())}
        if given.depth:
            policies["always"] = drafts_of(FixedDepth(given.depth))
        measure(engine, policies, prompts[kind], wanted)
        for drafts in policies.values():
            if drafts is not None:
                drafts.close()
    if given.check:
        both = [prompt for pair in zip(prompts["chat"], prompts["code"], strict=True) for prompt in pair]
        drafts = drafts_of(FixedDepth(given.depth))
        compare(engine, drafts, both[: given.check], given.tokens)
        drafts.close()
    draft.close()
    engine.close()


if __name__ == "__main__":
    main()
