"""Guards of a file in real worker processes, and what a model says in pieces."""

import json
from contextlib import asynccontextmanager
from dataclasses import replace

from services.orchestrator.adapters.guards.process_guards import open_guards
from services.orchestrator.core.model.response import FinishReason, InferenceDelta, InferenceOutput
from tests.support.orchestrator_app import orchestrator
from tests.support.scripted_services import USAGE, ScriptedInference, scripted_services

KEY = "AKIAIOSFODNN7EXAMPLE"
OWN_GUARD = """
import time

from pagantic_common.guards.plugin import Finding, GuardTraits


class Own:
    traits = GuardTraits(window=16)

    def find(self, text, start):
        if "break" in text:
            raise RuntimeError(text)
        if "stall" in text:
            while True:
                pass
        return []


def make(options):
    if "file" in options:
        open(options["file"]).close()
    return Own()
"""


def guard(plugin, *stages, **fields):
    """Return an entry of the file; `options` and others by name."""
    return {"plugin": plugin, "stages": list(stages), **fields}


def words(*stages, **fields):
    """Return a guard that keeps the word heist out."""
    return guard("topics", *stages, options={"words": ["heist"]}, **fields)


@asynccontextmanager
async def guarded(tmp_path, *guards, workers=1, folders=(), **services):
    """Yield scripted services behind these guards."""
    path = tmp_path / "guards.json"
    path.write_text(json.dumps({"guards": guards, "workers": workers, "folders": [str(folder) for folder in folders]}))
    async with open_guards(path) as opened:
        yield replace(scripted_services(**services), guards=opened)


@asynccontextmanager
async def guarded_orchestrator(tmp_path, *guards, **fields):
    """Serve an orchestrator with these guards and scripted services."""
    async with guarded(tmp_path, *guards, **fields) as services, orchestrator(tmp_path, services) as stub:
        yield stub


def offer_own_guard(tmp_path, monkeypatch):
    """Install a package, as pip would, that offers the guard `own`: it breaks and stalls at these words."""
    folder = tmp_path / "packages"
    described = folder / "own_guard-1.0.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: own-guard\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text("[pagantic.guards]\nown = own_guard:make\n")
    (folder / "own_guard.py").write_text(OWN_GUARD)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.syspath_prepend(folder)


class SpokenInference(ScriptedInference):
    """Says a text in pieces of so many characters, with reasoning before it, and counts the pieces."""

    def __init__(self, text, size=7, *, reasoning="", logprobs=()):
        super().__init__()
        self.text = text
        self.size = size
        self.reasoning = reasoning
        self.all_logprobs = logprobs
        self.said = 0

    async def infer(self, command, hints):
        self.commands.append(command)
        for begin in range(0, len(self.reasoning), self.size):
            yield InferenceDelta(reasoning=self.reasoning[begin : begin + self.size], usage=USAGE)
        for begin in range(0, len(self.text), self.size):
            self.said += 1
            yield InferenceDelta(self.text[begin : begin + self.size], usage=USAGE)
        yield InferenceOutput(
            self.text, FinishReason.STOP, usage=USAGE, reasoning=self.reasoning, logprobs=self.all_logprobs
        )
