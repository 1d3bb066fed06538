"""Public test suites, where they are: PAGANTIC_SUITES, or beside the project."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def suites():
    folder = Path(os.environ.get("PAGANTIC_SUITES") or ROOT.parent / "shared" / "suites")
    if not folder.is_dir():
        pytest.skip("the public suites are not here: set PAGANTIC_SUITES to their folder")
    return folder
