"""The pages tell of every knob that there is."""

import importlib
import re
from pathlib import Path

import pytest

from pagantic_common.settings import ServiceSettings

ROOT = Path(__file__).parents[3]
AREAS = ("orchestrator", "inference", "constraint", "context", "rerank", "tools")


def own_settings(area):
    module = importlib.import_module(f"services.{area}.settings")
    (cls,) = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, ServiceSettings) and value.__module__ == module.__name__
    ]
    return cls


@pytest.mark.parametrize("area", AREAS)
def test_a_services_page_names_every_setting_of_its_own(area):
    page = (ROOT / "services" / area / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\b[A-Z][A-Z0-9_]+\b", page))
    own = {name.upper() for name in own_settings(area).model_fields} - {
        name.upper() for name in ServiceSettings.model_fields
    }
    assert own <= named


def test_the_readme_names_every_setting_that_all_services_have():
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert {name.upper() for name in ServiceSettings.model_fields} <= set(re.findall(r"\b[A-Z][A-Z0-9_]+\b", page))
