from pathlib import Path

from tests.support.pages import is_ours

ROOT = Path(__file__).parents[3]
FOLDERS = ("pagantic_common", "services", "gateway", "deploy", "tests")
MAX_LINES = 500


def test_no_source_file_is_longer_than_500_lines():
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    sources = list(filter(is_ours, found))
    assert sources
    long = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in sources}
    assert {name: count for name, count in long.items() if count > MAX_LINES} == {}
