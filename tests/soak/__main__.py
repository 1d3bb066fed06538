"""`python -m tests.soak`: a real system under honest load, calm first, then with hostile requests and kills beside it.

It asserts nothing: it prints what was sent, what failed and why, how long requests took, and what grew.
"""

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

from tests.e2e.conftest import AREAS, System
from tests.soak.honest import capacity_of, load
from tests.soak.hostile import Hostile
from tests.support.killing import Processes
from tests.support.live_requests import ingest

SHARE_OF_CAPACITY = 0.8
CLIENTS = 6
CAPACITY_S = 60
KILL_EVERY_S = 60
SAMPLE_EVERY_S = 30
RETENTION_S = 600
NEAR_S = 30


def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Watch:
    """Samples memory, descriptors and the journal's size."""

    def __init__(self, processes, journal):
        self._processes = processes
        self._journal = journal
        self.samples = []

    async def run(self):
        while True:
            self.samples.append(await asyncio.to_thread(self._sample))
            await asyncio.sleep(SAMPLE_EVERY_S)

    def _sample(self):
        files = self._journal.parent.glob(f"{self._journal.name}*")
        found = {"journal": sum(path.stat().st_size for path in files) / 2**20}
        for area, pid in self._processes.pids().items():
            try:
                process = psutil.Process(pid)
                found[area] = process.memory_info().rss / 2**20
                found[f"{area} descriptors"] = process.num_fds()
            except (psutil.Error, ValueError):
                continue  # it was just killed
        return found

    def report(self):
        for name in sorted({name for sample in self.samples for name in sample}):
            values = [sample[name] for sample in self.samples if name in sample]
            third = max(1, len(values) // 3)
            first, last = statistics.median(values[:third]), statistics.median(values[-third:])
            say(f"  {name:26} first third {first:8.1f}  last third {last:8.1f}  most {max(values):8.1f}")


async def kill_in_turn(processes, kills):
    for area in itertools.cycle(AREAS):
        await asyncio.sleep(KILL_EVERY_S)
        kills.append((time.monotonic(), area))
        await asyncio.to_thread(processes.kill, area)


def report_outcomes(title, outcomes, kills=()):
    failed = [outcome for outcome in outcomes if outcome.error]
    say(f"{title}: {len(outcomes)} honest requests, {len(failed)} failed; {quantiles_of(outcomes)}")
    again = Counter(refusal for outcome in outcomes for refusal in outcome.refusals)
    say(f"  sent again after {dict(again) or 'nothing'}")
    report_by("mode", outcomes, lambda outcome: outcome.mode)
    if kills:
        report_by("kill", outcomes, lambda outcome: latest_kill(outcome, kills)[0])
    for outcome in failed:
        area, after_s = latest_kill(outcome, kills)
        say(f"  failed: {outcome.mode} after {outcome.took_s:.1f} s: {outcome.error[:200]} ({area}, {after_s:.1f} s)")


def report_by(title, outcomes, key_of):
    """Print how long requests took by a key."""
    for key in sorted({key_of(outcome) for outcome in outcomes}):
        those = [outcome for outcome in outcomes if key_of(outcome) == key]
        failures = sum(bool(outcome.error) for outcome in those)
        say(f"  {title} {key:12} {len(those):6} sent, {failures:4} failed; {quantiles_of(those)}")


def quantiles_of(outcomes):
    took = sorted(outcome.took_s for outcome in outcomes)
    return ", ".join(
        f"p{share * 100:.0f} {took[min(len(took) - 1, int(share * len(took)))]:.2f} s" for share in (0.5, 0.9, 0.99)
    )


def latest_kill(outcome, kills):
    """Return which service was killed last before a request ended, "none" in half a minute, and how long before."""
    ended_s = outcome.started_s + outcome.took_s
    found = [(area, ended_s - at) for at, area in kills if 0 <= ended_s - at < NEAR_S]
    return found[-1] if found else ("none", 0.0)


def report_logs(folder):
    """Count what the services logged as errors, by event."""
    lines = (line for path in sorted(folder.glob("*.log")) for line in path.read_text(errors="replace").splitlines())
    errors = Counter()
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # the supervisor's own
        if entry.get("level") in ("error", "critical"):
            errors[str(entry.get("event"))] += 1
    say(f"errors in the logs: {dict(errors) or 'none'}")


async def run(options, system, processes):
    address = system.address("orchestrator")
    rate = options.rate
    if not rate:
        capacity = await capacity_of(address, CLIENTS, CAPACITY_S, options.seed)
        rate = SHARE_OF_CAPACITY * capacity
        say(f"capacity with {CLIENTS} clients: {capacity:.2f} requests/s; load: {rate:.2f}/s")
    report_outcomes("calm", await load(address, rate, options.calm_minutes * 60, options.seed + 1))
    hostile = Hostile({area: system.address(area) for area in AREAS})
    watch, kills = Watch(processes, system.state / "journal.sqlite3"), []
    beside = [asyncio.create_task(one) for one in (hostile.run(), watch.run(), kill_in_turn(processes, kills))]
    outcomes = await load(address, rate, options.minutes * 60, options.seed + 2)
    for task in beside:
        task.cancel()
    for outcome in await asyncio.gather(*beside, return_exceptions=True):
        if isinstance(outcome, Exception):
            say(f"the soak itself failed: {outcome!r}")
    report_outcomes("hostile", outcomes, kills)
    say(f"{len(kills)} kills: {dict(Counter(area for _, area in kills))}")
    say(f"{sum(hostile.statuses.values())} hostile requests:")
    for (name, status), count in sorted(hostile.statuses.items()):
        say(f"  {count:5} {status:20} {name}")
    say("memory in MiB, and descriptors:")
    watch.report()


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--calm-minutes", type=float, default=5)
    parser.add_argument("--rate", type=float, default=0, help="requests/s; 0 is 80 %% of what the system can do")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pagantic-soak-") as folder:
        system = System(Path(folder))
        system.environment["PAGANTIC_ORCHESTRATOR_RETENTION_S"] = str(RETENTION_S)
        system.environment["PAGANTIC_INFERENCE_TUNING"] = "false"
        try:
            system.run(sys.executable, "-m", "deploy.local", "up")
            ingest(system.address("context"))
            asyncio.run(run(options, system, Processes(system)))
        finally:
            system.run(sys.executable, "-m", "deploy.local", "down", check=False)
            report_logs(Path(folder) / "logs")


if __name__ == "__main__":
    main()
