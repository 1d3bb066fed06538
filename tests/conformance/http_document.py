"""`python -m tests.conformance.http_document`: requests that Schemathesis generates from the gateway's own document.

The answers come from scripted services, through a real orchestrator. Answers must be as the document says, and none an
error of the server. Schemathesis is installed in a temporary folder, because nothing else needs it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import httpx

from gateway.http.program import open_app
from gateway.http.settings import HttpSettings
from tests.conformance.openai_generated import Endless
from tests.support.embedding import serve_inference
from tests.support.mcp_app import deployment, serving_app
from tests.support.real_collections import real_collections
from tests.support.scripted_services import ScriptedInference, answer, scripted_services

PACKAGE = "schemathesis==4.32.5"
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
# A request may take so long; nothing that is generated waits for anything.
CALL_S = 20.0


def prepare(folder: Path) -> Path:
    """Return a Schemathesis that is installed in a folder."""
    venv.create(folder / "venv", with_pip=True)
    programs = folder / "venv" / "bin"
    subprocess.run([str(programs / "python"), "-m", "pip", "-q", "install", PACKAGE], check=True)
    return programs / "st"


async def run(program: Path, examples: int, arguments: list[str]) -> int:
    """Serve, send so many cases to each path, and return the exit status of Schemathesis."""
    inference = ScriptedInference()
    inference.outputs = Endless([answer(), answer()])
    settings = HttpSettings(drain_s=0, call_s=CALL_S, models={"*": ""}, moderation_model="")
    with tempfile.TemporaryDirectory() as folder:
        async with (
            contextlib.asynccontextmanager(serve_inference)("small") as inference_address,
            real_collections(Path(folder), inference_address=inference_address) as collections,
            deployment(
                Path(folder),
                scripted_services(inference, context=collections.port),
                collections=collections,
                max_running=64,
            ) as world,
            open_app(settings, world.address) as app,
            serving_app(app, settings) as url,
        ):
            document = str(httpx.URL(url).copy_with(path="/openapi.json"))
            options = ["--checks", CHECKS, "--phases", "fuzzing", "--max-examples", str(examples), "--no-color"]
            tests = await asyncio.create_subprocess_exec(
                str(program), "run", document, *options, *arguments, cwd=folder
            )
            return await tests.wait()


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.http_document", description=__doc__)
    parser.add_argument("--program", type=Path, help="a Schemathesis, in place of installing one")
    parser.add_argument("--examples", type=int, default=100, help="generated cases for each path")
    options, arguments = parser.parse_known_args()
    if options.program is not None:
        return asyncio.run(run(options.program, options.examples, arguments))
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(run(prepare(Path(folder)), options.examples, arguments))


if __name__ == "__main__":
    sys.exit(main())
