"""The pages that people read, and their parts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("services", "gateway", "pagantic_common", "proto", "deploy")
DECISIONS = ROOT / "deploy" / "decisions"
# What an example has beside its own files once it was built.
INSTALLED = {"node_modules", ".venv"}
STUBS = ROOT / "deploy" / "examples" / "clients" / "python" / "pagantic"
FENCE = "```"


def pages() -> list[Path]:
    """Return every page of the product but the decisions, which stay as they were made."""
    found = sorted(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))
    current = [page for page in found if DECISIONS not in page.parents and is_ours(page)]
    return [*sorted(ROOT.glob("*.md")), *current, ROOT / "deploy" / "observability" / "alerts.yaml"]


def is_ours(path: Path) -> bool:
    """Tell whether a file was written here, and neither installed nor generated beside an example."""
    return not INSTALLED.intersection(path.parts) and STUBS not in path.parents


def prose_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number and words of each line, without code: blocks in fences, indented blocks, and backticks."""
    is_code = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith(FENCE):
            is_code = not is_code
        elif not is_code:
            yield number, re.sub(r"`[^`]*`|\]\([^)]*\)", "", line)


def blocks(text: str, language: str = "") -> list[str]:
    """Return the blocks of code in fences of a language."""
    return re.findall(rf"^{FENCE}{language}\n(.*?)^{FENCE}$", text, flags=re.DOTALL | re.MULTILINE)
