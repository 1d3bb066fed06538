"""`python -m tests.bench`: drives our inference service, and a peer in turn, by the same load, and prints gains.

It asserts no time. The peer is started by whoever compares, with the same model file and the same number of threads.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from tests.bench.llama_server import best_settings, running_llama_server
from tests.bench.load import BenchError, Measurement, Side, measure, warm_up_queries
from tests.bench.ours import Ours, running_service
from tests.bench.peer import find_peer
from tests.bench.report import Figures, as_json, block, figures_of, median_of, summary
from tests.bench.scenarios import SCENARIOS, Scenario
from tests.bench.served_file import served_file
from tests.bench.step.engine_figures import print_engine_figures
from tests.bench.sweep import own_settings, shown

# Each slot of llama-server has so many tokens.
_WINDOW = 2048


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _options() -> argparse.Namespace:
    names = ",".join(scenario.name for scenario in SCENARIOS)
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    peer = parser.add_mutually_exclusive_group()
    peer.add_argument("--peer", default="", help="http://host:port of a llama-server or an OpenAI-like server")
    peer.add_argument("--peer-program", type=Path, help="llama-server: it is run at the settings that suit it best")
    parser.add_argument("--peer-model", type=Path, help="file for --peer-program; else the file that our service loads")
    parser.add_argument("--ours", default="", help="host:port of an inference service that runs already")
    parser.add_argument("--scenarios", default=names, help=f"of {names}")
    parser.add_argument("--clients", default="1,4,8", help="numbers of clients, comma-separated")
    parser.add_argument("--requests", type=int, default=16, help="requests per run")
    parser.add_argument("--runs", type=int, default=3, help="runs, of which medians are taken")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="threads of our service")
    parser.add_argument("--busy", action="store_true", help="keep one core busy with another process meanwhile")
    parser.add_argument("--json", type=Path, help="file that takes all figures")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="what prompts and answers are drawn from")
    return parser.parse_args()


def _chosen(names: str) -> list[Scenario]:
    known = {scenario.name: scenario for scenario in SCENARIOS}
    unknown = [name for name in names.split(",") if name not in known]
    if unknown:
        raise BenchError(f"no scenario {unknown[0]!r}: there are {', '.join(known)}")
    return [known[name] for name in names.split(",")]


@contextlib.contextmanager
def _busy_core(wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def _figures(ours: Ours, scenario: Scenario, measured: Measurement) -> Figures:
    pairs = list(zip(measured.queries, measured.answers, strict=True))
    known = [answer.output_tokens for answer in measured.answers]
    # A side that does not count its output is counted after the clock, by our tokenizer.
    uncounted = [text for answer in measured.answers if answer.output_tokens is None for text in answer.texts]
    tokens = sum(one for one in known if one is not None) + (await ours.count_tokens(uncounted) if uncounted else 0)
    wrong = sum(not scenario.is_right(query, text) for query, answer in pairs for text in answer.texts)
    wrong += sum(
        query.is_full_length and answer.output_tokens not in (None, query.max_tokens * query.candidates)
        for query, answer in pairs
    )
    return figures_of(measured, tokens, wrong)


async def _warm_up(sides: Sequence[Side], clients: int) -> None:
    """Have each side's memory touched and its threads started before anything counts."""
    for side in sides:
        await measure(side, (), warm_up_queries(clients), clients)


@contextlib.contextmanager
def _peer(options: argparse.Namespace) -> Iterator[str]:
    """Yield the URL of the peer, which is started if it is a program; empty without one."""
    if options.peer_program is None:
        yield options.peer
        return
    slots = max(_levels(options))
    arguments = ["--threads", str(options.threads), "--parallel", str(slots), "--ctx-size", str(_WINDOW * slots)]
    program, model = options.peer_program, options.peer_model or served_file()
    with _busy_core(options.busy):
        best = best_settings(program, model, arguments, levels=_levels(options), requests=options.requests, say=_say)
    _say(f"llama-server runs {model.name} with {' '.join(best.arguments)}, spin count {best.spin_count}\n")
    with running_llama_server(program, model, arguments, best) as url:
        yield url


def _levels(options: argparse.Namespace) -> list[int]:
    return [int(clients) for clients in options.clients.split(",")]


async def _compare(options: argparse.Namespace, address: str, peer_url: str) -> None:
    scenarios = _chosen(options.scenarios)
    levels = _levels(options)
    ours = Ours(address)
    sides: list[Side] = [ours]
    try:
        end_tokens = await ours.find_end_tokens()
        if peer_url:
            sides.append(await find_peer(peer_url, end_tokens))
        await _warm_up(sides, max(levels))
        results = []
        records = []
        for scenario in scenarios:
            for clients in levels:
                figures = await _runs(options, ours, sides, scenario, clients)
                medians = [median_of(runs) for runs in figures]
                peer = medians[1] if len(medians) > 1 else None
                title = f"{scenario.name}, {clients} clients ({scenario.about})"
                _say(block(title, medians[0], peer, sides[-1].name) + "\n")
                results.append((scenario.name, clients, medians[0], peer))
                records.append(
                    {
                        "scenario": scenario.name,
                        "clients": clients,
                        **{
                            side.name: [as_json(run) for run in runs] for side, runs in zip(sides, figures, strict=True)
                        },
                    }
                )
                if options.json:
                    content = {"seed": options.seed, "is_busy": options.busy, "measurements": records}
                    options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        _say(summary(results))
        if not options.busy and not options.ours:
            await _compare_busy(options, ours, sides)
    finally:
        await ours.close()


async def _compare_busy(options: argparse.Namespace, ours: Ours, sides: Sequence[Side]) -> None:
    """Print which part of its rate of chat each side keeps beside another busy process, of one run each."""
    (chat,) = _chosen("chat")
    quiet = argparse.Namespace(**{**vars(options), "runs": 1})
    busy = argparse.Namespace(**{**vars(quiet), "busy": True})
    _say("\nchat beside one other busy process, of the rate without it:")
    for clients in _levels(options):
        quiet_runs = await _runs(quiet, ours, sides, chat, clients, part=" quiet")
        busy_runs = await _runs(busy, ours, sides, chat, clients, part=" busy")
        kept = [
            f"{side.name} {median_of(slow).tokens_per_s / median_of(fast).tokens_per_s:.2f}"
            for side, slow, fast in zip(sides, busy_runs, quiet_runs, strict=True)
        ]
        _say(f"  {clients} clients: {', '.join(kept)}")


async def _runs(
    options: argparse.Namespace, ours: Ours, sides: Sequence[Side], scenario: Scenario, clients: int, *, part: str = ""
) -> list[list[Figures]]:
    """Return the figures of each side, run by run; who begins alternates. Each part of the bench has other prompts."""
    figures: list[list[Figures]] = [[] for _ in sides]
    for index in range(options.runs):
        drawn = f"{options.seed} {scenario.name} {clients} {index}{part}"
        run = scenario.make(Random(drawn), options.requests)  # noqa: S311
        order = list(enumerate(sides))
        for place, side in order if index % 2 == 0 else reversed(order):
            with _busy_core(options.busy):
                measured = await measure(side, run.warm_up, run.queries, clients)
            figures[place].append(await _figures(ours, scenario, measured))
    return figures


def main() -> None:
    """Entry point."""
    options = _options()
    _say(
        f"{options.requests} requests per run, medians of {options.runs} runs, {options.threads} threads, "
        f"{'one other busy process, ' if options.busy else ''}seed {options.seed}; gain above 1: ours is better\n"
    )
    try:
        with _peer(options) as peer_url:
            if options.ours:
                asyncio.run(_compare(options, options.ours, peer_url))
                return
            with _busy_core(options.busy):
                levels = _levels(options)
                settings = own_settings(options.threads, levels=levels, requests=options.requests, say=_say)
            _say(f"ours runs with {shown(settings)}\n")
            with running_service("inference", **settings) as (address, _):
                asyncio.run(_compare(options, address, peer_url))
        print_engine_figures(settings, max(levels), options.seed, _say)
    except BenchError as error:
        sys.exit(f"bench: {error}")


if __name__ == "__main__":
    main()
