"""Public test suites, where they are: PAGANTIC_SUITES, or beside the project."""

import os
from pathlib import Path

import pytest

from tests.support.needs import SUITES, skip_without

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def suites():
    folder = Path(os.environ.get("PAGANTIC_SUITES") or ROOT.parent / "shared" / "suites")
    if not folder.is_dir():
        skip_without(SUITES)
    return folder
