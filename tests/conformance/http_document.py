"""`python -m tests.conformance.http_document`: requests that Schemathesis generates from the gateway's own document.

The answers come from scripted services, through a real orchestrator. Answers must be as the document says, and none an
error of the server. Schemathesis is installed in a temporary folder, because nothing else needs it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import venv
from pathlib import Path

import httpx

from gateway.http.program import open_app
from gateway.http.settings import HttpSettings
from tests.conformance.openai_generated import Endless
from tests.support.mcp_app import deployment, serving_app
from tests.support.scripted_services import ScriptedInference, answer, scripted_services

PACKAGE = "schemathesis==4.32.5"
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
OPERATIONS = 46
# A request may take so long; those that wait for nothing are far shorter.
CALL_S = 20.0


def prepare(folder: Path) -> Path:
    """Return a Schemathesis that was installed in a folder."""
    venv.create(folder / "venv", with_pip=True)
    return folder / "venv" / "bin" / "st"


async def run(program: Path, cases: int, arguments: list[str]) -> int:
    """Serve, send about so many cases, and return the exit status of Schemathesis."""
    inference = ScriptedInference()
    inference.outputs = Endless([answer(), answer()])
    settings = HttpSettings(drain_s=0, call_s=CALL_S, models={"*": ""})
    with tempfile.TemporaryDirectory() as folder:
        async with (
            deployment(Path(folder), scripted_services(inference), max_running=64) as world,
            open_app(settings, world.address) as app,
            serving_app(app, settings) as url,
        ):
            document = str(httpx.URL(url).copy_with(path="/openapi.json"))
            options = ["--checks", CHECKS, "--max-examples", str(cases), "--no-color"]
            tests = await asyncio.create_subprocess_exec(
                str(program), "run", document, *options, *arguments, cwd=folder
            )
            return await tests.wait()


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.http_document", description=__doc__)
    parser.add_argument("--program", type=Path, help="a Schemathesis, in place of installing one")
    parser.add_argument("--examples", type=int, default=100, help="generated cases of each operation and phase")
    options, arguments = parser.parse_known_args()
    return asyncio.run(run(options.program, options.examples, arguments))


if __name__ == "__main__":
    sys.exit(main())
