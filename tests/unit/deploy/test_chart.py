"""The Helm chart is what the manifests make of it; tests/cluster renders and installs it."""

import re

import yaml

from tests.support.write_chart import CHART, chart


def test_the_chart_is_made_of_the_manifests_of_today():
    made = chart()
    on_disk = {path.relative_to(CHART).as_posix(): path for path in CHART.rglob("*") if path.is_file()}
    assert set(on_disk) == {*made, "Chart.yaml"}
    stale = [name for name, text in made.items() if on_disk[name].read_text(encoding="utf-8") != text]
    assert stale == [], "run make chart"


def test_the_chart_has_the_version_of_the_project():
    (project,) = re.findall(
        r'^version = "(.+)"$', (CHART.parents[1] / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE
    )
    metadata = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert metadata["version"] == metadata["appVersion"] == project
