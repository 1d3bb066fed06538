"""The import contracts refuse what they are there to refuse: breaches are planted in a copy of the tree."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("pagantic_common", "services", "gateway", "deploy")

# Where, what is planted there, and what the report must say of it.
BREACHES = (
    ("services/tools/core", "from pagantic_common.telemetry import names", "pagantic_common.telemetry"),
    ("services/tools/core", "from pagantic_common.rpc import status", "pagantic_common.rpc"),
    ("services/tools/core", "import sqlalchemy", "sqlalchemy"),
    ("services/tools/core", "import threading", "threading"),
    ("services/tools/core", "import grpc", "grpc"),
    ("services/tools/app", "from pagantic_common.client import hints", "pagantic_common.client"),
    ("services/tools/app", "from pagantic_common.codec import errors", "pagantic_common.codec"),
    ("gateway/cli", "import deploy.local", "deploy"),
    ("services/tools/adapters", "import deploy.local", "deploy"),
    ("services/context/adapters", "from pagantic.rerank.v1 import rerank_service_pb2", "pagantic.rerank"),
    ("services/tools/adapters", "from pagantic.orchestrator.v1 import event_pb2", "pagantic.orchestrator"),
    ("services/rerank", "from pagantic_common.testing import server", "pagantic_common.testing"),
    ("pagantic_common/grammar", "import asyncio", "asyncio"),
    ("gateway/cli", "from pagantic.constraint.v1 import contract_pb2", "pagantic.constraint"),
    ("services/context/app", "import services.tools.core", "services.tools"),
    ("services/orchestrator/core/model", "from services.orchestrator.core.turn import run", "core.turn.run"),
    (
        "services/orchestrator/app/effects",
        "from services.orchestrator.app.running import environment",
        "app.running.environment",
    ),
)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """What the contracts say of a copy of the tree with every breach planted in it."""
    copy = tmp_path_factory.mktemp("planted")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__", "kubernetes"))
    shutil.copytree(ROOT / "proto" / "gen" / "pagantic", copy / "pagantic")
    shutil.copy(ROOT / ".importlinter", copy)
    for number, (folder, statement, _) in enumerate(BREACHES):
        (copy / folder / f"planted_{number}.py").write_text(f"{statement}\n", encoding="utf-8")
    (copy / "services" / "tools" / "helpers.py").write_text("", encoding="utf-8")
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy), "COLUMNS": "300"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    return done.stdout


@pytest.mark.parametrize("number", range(len(BREACHES)), ids=lambda number: BREACHES[number][1])
def test_a_breach_is_refused(number, report):
    folder, _, imported = BREACHES[number]
    planted = f"{folder.replace('/', '.')}.planted_{number} -> "
    assert any(planted in line and imported in line for line in report.splitlines())


def test_a_room_that_nobody_planned_is_refused(report):
    assert "services.tools.helpers" in report or "helpers" in report.partition("rooms inside a service")[2]
