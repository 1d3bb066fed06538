"""`python -m tests.conformance.openai_generated`: the tests that the package `openai` carries, against our gateway.

They are generated from OpenAI's document, and are fetched into a temporary folder: nothing of them is kept. The answers
come from scripted services, through a real orchestrator.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
from importlib.metadata import version
from pathlib import Path

import httpx

from gateway.http.program import PATH, open_app
from gateway.http.settings import HttpSettings
from tests.support.mcp_app import deployment, serving_app
from tests.support.scripted_services import ScriptedInference, answer, scripted_services

FILES = (
    *("chat", "test_completions.py", "test_embeddings.py", "test_models.py", "test_moderations.py"),
    *("test_responses.py", "responses", "test_conversations.py", "conversations", "test_decisions.py"),
)
PLUGIN = Path(__file__).parent / "openai_plugin"
# What the tests import beside the package itself.
PACKAGES = (
    "respx",
    "pytest",
    "pytest-asyncio",
    "pytest-xdist",
    "rich",
    "dirty-equals",
    "inline-snapshot",
    "nest-asyncio",
)


class Endless(list):
    """An answer that never runs out."""

    def pop(self, _index=0):
        return answer()


def prepare(folder: Path) -> tuple[Path, Path]:
    """Return the unpacked sdist of the installed version, and a Python that has what its tests need."""
    package = f"openai=={version('openai')}"
    pip = [sys.executable, "-m", "pip", "-q"]
    subprocess.run([*pip, "download", "--no-deps", "--no-binary", ":all:", "-d", str(folder), package], check=True)
    [archive] = folder.glob("openai-*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    subprocess.run(
        [str(python), "-m", "pip", "-q", "install", f"{package[:6]}[aiohttp]{package[6:]}", *PACKAGES], check=True
    )
    return archive.with_suffix("").with_suffix(""), python


async def run(sources: Path, python: Path, arguments: list[str]) -> int:
    """Serve, run the tests, and return the exit status of pytest."""
    inference = ScriptedInference()
    inference.outputs = Endless([answer(), answer()])
    settings = HttpSettings(drain_s=0, models={"*": ""}, moderation_model="")
    with tempfile.TemporaryDirectory() as folder:
        async with (
            deployment(Path(folder), scripted_services(inference), max_running=64) as world,
            open_app(settings, world.address) as app,
            serving_app(app, settings) as url,
        ):
            files = [str(Path("tests", "api_resources", name)) for name in FILES]
            options = ["-p", "seeds", "-p", "no:cacheprovider", "-n", "0", "-q", "--tb=line", "-W", "ignore"]
            served = str(httpx.URL(url).copy_with(path=PATH))
            environment = os.environ | {"PYTHONPATH": str(PLUGIN), "TEST_API_BASE_URL": served}
            tests = await asyncio.create_subprocess_exec(
                str(python), "-m", "pytest", *options, *files, *arguments, cwd=sources, env=environment
            )
            return await tests.wait()


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.openai_generated", description=__doc__)
    parser.add_argument("--sources", type=Path, help="an unpacked sdist, in place of fetching one")
    parser.add_argument(
        "--python", type=Path, default=sys.executable, help="one that has what the tests of SOURCES need"
    )
    options, arguments = parser.parse_known_args()
    if options.sources is not None:
        return asyncio.run(run(options.sources, options.python, arguments))
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(run(*prepare(Path(folder)), arguments))


if __name__ == "__main__":
    sys.exit(main())
