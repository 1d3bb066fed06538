"""A notebook that a kernel of Jupyter runs against the real system: what its cells show."""

import json
import re

import pytest

from tests.e2e.conftest import ROOT

CELLS = {
    "client": """
from pagantic.constraint.v1 import contract_pb2
from pagantic_common.client import Client, FileProgress, chat_request, watch
client = Client()
""",
    "chat": 'response = client.chat("Say hello.", tools=[], max_tokens=8, request_id="notebook")\nresponse',
    "timeline": "client.timeline(response.request_id)",
    "execution": "client.get_execution(response.request_id)",
    "vote": 'client.vote("Is the sea wet?", {"enum": ["yes", "no"]}, n=3)',
    "ingest": f"""
paths = [{str(ROOT / "deploy" / "examples" / "incident.txt")!r}]
client.ingest_files("notebook", paths, on_file=FileProgress(paths))
""",
    "ask": """
bounds = contract_pb2.Citations(max_claims=1, may_abstain=False)
client.chat("Why did payments fail?", context="notebook", citations=bounds, tools=[], max_tokens=400)
""",
    "watch": 'watched = watch(client.stream(chat_request("Say hello.", tools=[], max_tokens=8)))',
    "end": "client.close()",
}


@pytest.fixture(scope="module")
def shown(system, tmp_path_factory):
    """The outputs of each cell, as bundles by media type."""
    folder = tmp_path_factory.mktemp("notebook")
    cells = [
        {"cell_type": "code", "id": name, "source": source, "metadata": {}, "outputs": [], "execution_count": None}
        for name, source in CELLS.items()
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}, "cells": cells}
    path = folder / "client.ipynb"
    path.write_text(json.dumps(notebook))
    folders = [f"{name}={folder / name}" for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR")]
    system.run("env", *folders, "jupyter-execute", "--inplace", "--timeout=60", path)
    done = json.loads(path.read_text())["cells"]
    return {cell["id"]: [output["data"] for output in cell["outputs"] if "data" in output] for cell in done}


def html_of(bundle):
    return "".join(bundle["text/html"])


def test_results_show_themselves(shown):
    (chat,), (execution,), (timeline,) = shown["chat"], shown["execution"], shown["timeline"]
    assert "request notebook" in html_of(chat)
    assert "execution notebook: CHAT, COMPLETE" in html_of(execution)
    rows_of_text = re.findall(r"^ +\d+ ", "".join(timeline["text/plain"]), re.MULTILINE)
    assert rows_of_text
    names_of_columns = 1
    assert html_of(timeline).count("<tr>") == len(rows_of_text) + names_of_columns
    assert "inference.end" in html_of(timeline)


def test_votes_and_citations_show_themselves(shown):
    (vote,), (ask,) = shown["vote"], shown["ask"]
    assert re.search(r"[123] of 3", html_of(vote))
    assert "confidence" in html_of(vote)
    assert "<mark" in html_of(ask)
    assert "<blockquote>" in html_of(ask)


def test_long_work_shows_how_far_it_is(shown):
    progress, ingested = shown["ingest"]
    assert "1 of 1 file, 0 failed" in html_of(progress)
    assert "now 1 document" in html_of(ingested)
    (watched,) = shown["watch"]
    assert "inference.end" in html_of(watched)
