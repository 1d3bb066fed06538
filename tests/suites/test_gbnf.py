"""llama.cpp's example grammars: derived texts are accepted, and mutated ones decided as llama.cpp decides them."""

import json
import subprocess
import sys
from random import Random

import pytest

from pagantic_common.grammar.engine_text import engine_text_of_gbnf
from pagantic_common.grammar.gbnf import parse_gbnf
from pagantic_common.grammar.tree import CharSet, Choice, Literal, Repeat, RuleRef, Sequence
from services.constraint.core.compilation import Source, SourceKind, compile_source
from services.constraint.core.grammars import derives
from services.constraint.core.model import Limits

GRAMMARS = ("arithmetic", "c", "chess", "english", "japanese", "json", "json_arr", "list")
LIMITS = Limits(max_schema_bytes=100_000, max_schema_depth=64, max_output_bytes=100_000)
WALKS = 40
LONGEST = 300
DEEP = 12
SURROGATES = range(0xD800, 0xE000)


class Walk:
    """Derives a text at random; deeper choices take what is short, so that every walk ends."""

    def __init__(self, grammar, random):
        self.rules = grammar.rules
        self.random = random
        self.cost = self._costs()

    def _costs(self):
        costs = dict.fromkeys(self.rules, float("inf"))
        for _ in self.rules:
            costs = {name: 1 + self.cost_of(node, costs) for name, node in self.rules.items()}
        return costs

    def cost_of(self, node, costs):
        match node:
            case RuleRef(name=name):
                return costs[name]
            case Repeat(item=item, min_count=min_count):
                return min_count * self.cost_of(item, costs) if min_count else 0
            case Sequence(items=items):
                return sum(self.cost_of(item, costs) for item in items)
            case Choice(options=options):
                return min(self.cost_of(option, costs) for option in options)
        return 0

    def derive(self, node, depth=0):
        random = self.random
        match node:
            case Literal(text=text):
                return text
            case CharSet():
                return chr(self.pick(node))
            case RuleRef(name=name):
                parts = [self.rules[name]]
            case Repeat(item=item, min_count=min_count, max_count=max_count):
                top = min_count + (0 if depth > DEEP else 3)
                parts = [item] * random.randint(min_count, top if max_count is None else min(max_count, top))
            case Sequence(items=items):
                parts = items
            case Choice(options=options):
                cheapest = min(options, key=lambda option: self.cost_of(option, self.cost))
                parts = [cheapest if depth > DEEP else random.choice(options)]
        return "".join(self.derive(part, depth + 1) for part in parts)

    def pick(self, node):
        while True:
            if node.negated or not node.ranges:
                code = self.random.choice([self.random.randrange(32, 127), self.random.randrange(0x80, 0x3000)])
                if any(low <= code <= high for low, high in node.ranges):
                    continue
            else:
                code = self.random.randint(*self.random.choice(node.ranges))
            if code and code not in SURROGATES:
                return code


def mutate(text, random):
    at = random.randrange(len(text) + 1)
    alphabet = text + ' "\n(){}[]+-0a,é'
    match random.randrange(4):
        case 0:
            return text[:at] + text[at + 1 :]
        case 1:
            return text[:at] + random.choice(alphabet) + text[at:]
        case 2:
            return text[:at] + random.choice(alphabet) + text[at + 1 :]
        case _:
            return text[:at]


@pytest.fixture(scope="module")
def llama():
    command = [sys.executable, "-m", "tests.support.llama_grammar"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, **pipes) as process:

        def decide(grammar, texts):
            process.stdin.write(json.dumps({"grammar": grammar, "texts": texts}) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield decide
        process.stdin.close()


@pytest.mark.parametrize("name", GRAMMARS)
def test_derived_texts_are_accepted_and_mutated_ones_decided_as_llama_does(suites, llama, name):
    text = (suites / "gbnf" / f"{name}.gbnf").read_text()
    assert compile_source(Source(SourceKind.GRAMMAR, text), LIMITS).engine_text
    engine_text = engine_text_of_gbnf(text)
    random = Random(name)  # noqa: S311 - no secret
    grammar = parse_gbnf(text)
    walk = Walk(grammar, random)
    derived = [walk.derive(grammar.rules["root"]) for _ in range(WALKS)]
    derived = [found for found in derived if len(found) <= LONGEST]
    assert derived
    assert [found for found in derived if not derives(engine_text, found)] == []
    mutated = [mutate(found, random) for found in derived for _ in range(5)]
    ours = [derives(engine_text, found) for found in mutated]
    theirs = llama(text, mutated)
    compared = list(zip(mutated, ours, theirs, strict=True))
    assert sum(their is not None for _, _, their in compared) > len(mutated) / 10
    assert [(found, our) for found, our, their in compared if our != their and their is not None] == []
    assert False not in llama(text, derived)


def test_arithmetic_accepts_an_equation_that_a_greedy_lexer_refuses(suites):
    assert derives(engine_text_of_gbnf((suites / "gbnf" / "arithmetic.gbnf").read_text()), "a=1\n")
