"""Caches that unpickle what they find on disk come with a dependency and are not used."""

from tests.unit.deploy.test_files import ROOT

PRODUCT = ("pagantic_common", "services", "gateway", "deploy")
NAMES = ("diskcache", "LlamaDiskCache", "LlamaCache")


def test_nothing_of_ours_uses_a_cache_that_unpickles_files():
    sources = [path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")]
    assert len(sources) > 100
    found = [f"{path}: {name}" for path in sources for name in NAMES if name in path.read_text(encoding="utf-8")]
    assert found == []
