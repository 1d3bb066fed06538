"""The recipes are pasted as they stand: a block that has a name is saved under it, one without a language is run."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from pagantic_common.domain.text.citations import NOT_IN_SOURCES
from pagantic_common.storage.settings_file import read_settings_file
from tests.e2e.conftest import ROOT
from tests.support.killing import is_gone, wait_until
from tests.support.needs import TIME_FOR_RECIPES, skip_without

pytestmark = pytest.mark.timeout(600)  # the first one that runs starts a system

PAGE = (ROOT / "deploy" / "docs" / "recipes.md").read_text(encoding="utf-8")
START, *RECIPES = re.split(r"^## ", PAGE, flags=re.MULTILINE)
RECIPE_OF = {int(recipe.split(".")[0]): recipe for recipe in RECIPES}
# Those that change no settings run in every test run, on the system that the other tests have.
SAMPLE = (2, 5)
IS_WHOLE = os.environ.get("PAGANTIC_TEST_RECIPES") == "all"
BLOCK = re.compile(r"(?P<before>[^\n]*)\n\n```(?P<language>\w*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
NAME = re.compile(r"\bas\s+`([\w.]+)`")


class Kitchen:
    """A folder in which recipes are pasted, as in that of the repository."""

    def __init__(self, folder, environment):
        self.folder = folder
        self.environment = environment | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        (folder / "deploy").symlink_to(ROOT / "deploy")

    def paste(self, text):
        """Paste the blocks of a recipe; returns what they print on stdout, and on stderr. Answers are not pasted."""
        printed = ["", ""]
        for block in BLOCK.finditer(text):
            if not block["language"]:
                done = self._run(block["code"])
                assert done.returncode == 0, f"{block['code']}\n{done.stdout}\n{done.stderr}"
                printed = [printed[0] + done.stdout, printed[1] + done.stderr]
            elif name := NAME.search(block["before"]):
                (self.folder / name[1]).write_text(block["code"], encoding="utf-8")
        return printed

    def _run(self, code):
        """Run a block in a shell; where a command of it fails, what was started in the background ends too."""
        with TemporaryFile("w+") as stdout, TemporaryFile("w+") as stderr:
            shell = subprocess.Popen(
                ["bash", "-ec", code],  # noqa: S607 - of its PATH
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
            try:
                shell.wait(timeout=200)
            finally:
                if shell.returncode != 0:
                    with suppress(ProcessLookupError):
                        os.killpg(shell.pid, signal.SIGKILL)
                    shell.wait()
            printed = [(file.seek(0), file.read())[1] for file in (stdout, stderr)]
        return subprocess.CompletedProcess(code, shell.returncode, *printed)

    def stop(self):
        """Stop the systems that recipes have started, whichever of them a recipe that failed has left."""
        for folder in (self.folder / "production", self.folder):
            if folder.is_dir():
                subprocess.run(["pagantic", "down"], cwd=folder, env=self.environment, check=True)  # noqa: S607


@pytest.fixture(scope="module")
def kitchen(request, tmp_path_factory):
    """A system that the page's own first commands start, or in a sample the one that other tests have."""
    folder = tmp_path_factory.mktemp("kitchen")
    if not IS_WHOLE:
        yield Kitchen(folder, request.getfixturevalue("system").environment)
        return
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PAGANTIC_")}
    own = {"XDG_STATE_HOME": str(folder / "state"), "XDG_CONFIG_HOME": str(folder / "config"), "COLUMNS": "200"}
    kitchen = Kitchen(folder, environment | own)
    try:
        kitchen.paste(START)
        yield kitchen
    finally:
        kitchen.stop()


def paste(kitchen, number):
    if not IS_WHOLE and number not in SAMPLE:
        skip_without(TIME_FOR_RECIPES)
    if IS_WHOLE:
        kitchen.environment.pop("PAGANTIC_ADDRESS", None)
        if "Client()" in RECIPE_OF[number]:  # the page says when Python programs need it
            kitchen.environment["PAGANTIC_ADDRESS"] = f"127.0.0.1:{orchestrator_port(kitchen)}"
    return kitchen.paste(RECIPE_OF[number])


def orchestrator_port(kitchen):
    settings = read_settings_file(kitchen.folder / "pagantic.env").settings
    return {one.name: one.value for one in settings}.get("PAGANTIC_ORCHESTRATOR_PORT", "50051")


def test_there_are_ten():
    assert list(RECIPE_OF) == list(range(1, 11))


def test_extract_from_a_pdf(kitchen):
    answer, _ = paste(kitchen, 1)
    (extracted,) = [json.loads(line) for line in answer.splitlines() if line.startswith("{")]
    assert re.fullmatch(r"\d{4}-\d{4}", extracted["number"])
    assert extracted.keys() == {"number", "customer", "total", "currency"}


def test_vote_on_a_label(kitchen):
    printed, _ = paste(kitchen, 2)
    confidence, candidates = printed.splitlines()[-1].split()
    assert 0.2 <= float(confidence) <= 1
    assert int(candidates) == 5


def test_cite_from_documents(kitchen):
    printed, _ = paste(kitchen, 3)
    assert "[1] deploy/examples/incident.txt, characters " in printed or NOT_IN_SOURCES in printed


def test_chat_with_an_mcp_server(kitchen):
    printed, notes = paste(kitchen, 4)
    assert "stock_pieces" in printed
    assert re.search(r"-> \d+", notes)


def test_classify_by_decisions(kitchen):
    printed, _ = paste(kitchen, 5)
    rows = re.findall(r"^(delivery|billing|other) +(0\.\d\d|1\.00)   angry (?:0\.\d\d|1\.00)   ", printed, re.MULTILINE)
    assert len(rows) == 2
    assert all(float(confidence) >= 1 / 3 - 0.005 for _, confidence in rows)


def test_plan_with_approval(kitchen):
    printed, _ = paste(kitchen, 6)
    waited, price, letter = printed.splitlines()[:3]
    assert waited.startswith('approve calculator {"expression":"17*23"}')
    assert price == "391"
    assert letter


def test_batch_over_a_csv(kitchen):
    paste(kitchen, 7)
    with (kitchen.folder / "labelled.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == ["1", "2", "3", "4"]
    assert all(row["topic"] and row["urgent"] in ("True", "False") and not row["error"] for row in rows)


def test_evaluate_a_prompt(kitchen):
    printed, _ = paste(kitchen, 8)
    assert "semantic" in printed
    assert "<html" in (kitchen.folder / "sailor.html").read_text(encoding="utf-8")


def test_fall_back_to_a_hosted_model(kitchen):
    printed, _ = paste(kitchen, 9)
    assert "The hosted model says: a lighthouse guides ships." in printed


def test_deploy(kitchen):
    printed, _ = paste(kitchen, 10)
    (answer,) = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert answer["choices"][0]["message"]["content"]
    assert not re.search("^fail", printed, re.MULTILINE)


def test_a_block_whose_command_fails_leaves_no_program_behind(tmp_path):
    done = Kitchen(tmp_path, dict(os.environ))._run("sleep 300 & echo $!\nfalse")
    assert done.returncode == 1
    wait_until(lambda: is_gone(int(done.stdout)), "the program in the background is gone")
