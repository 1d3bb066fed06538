"""Reports: figures, tables, JSON, and a page that shows everything as text."""

import json
import re
from html.parser import HTMLParser

import pytest
from rich.console import Console

from gateway.evaluation.comparing.comparison import compare
from gateway.evaluation.reporting.figures import as_json, figures_of, scored_cases, shared_units
from gateway.evaluation.reporting.page import page_of
from gateway.evaluation.reporting.tables import (
    differences_table,
    lowest_lines,
    means_table,
    outcome_lines,
    unpaired_line,
)
from gateway.evaluation.running.results import Header, Result, Results, StoredScore

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> \x1b[2J {{ 7 * 7 }} [bold]"


def results(values, *, name="n", error=""):
    header = Header(
        id="e1",
        name=name,
        started_at="2026-01-01",
        suite={"cases": [{"name": f"c{index}", "input": HOSTILE, "expected": HOSTILE} for index in range(len(values))]},
        suite_hash="h",
        settings={},
        units={"exact": "", "latency": "s"},
        versions={"models": HOSTILE},
    )
    stored = {}
    for index, value in enumerate(values):
        failed = error if value == 0 else ""
        stored[f"c{index}"] = Result(
            case=f"c{index}",
            key="k",
            tags=[["odd", "even"][index % 2 == 0], HOSTILE],
            request_id=f"eval.e1.c{index}",
            scores={
                "exact": StoredScore(value=value, note=HOSTILE, confidence=0.5),
                "latency": StoredScore(value=1.0 + index),
            },
            output=HOSTILE,
            error=failed,
            error_message=HOSTILE if failed else "",
            model="small",
            seed=2**64 - 1,
            latency_s=1.0 + index,
            prompt_tokens=10,
            output_tokens=2,
        )
    return Results(header, stored)


BEFORE = results([1.0, 1.0, 1.0, None], name="before")
AFTER = results([1.0, 0.0, 0.5, 1.0], name="after", error="TOOL_TIMEOUT")


@pytest.fixture
def comparison():
    return compare(scored_cases(BEFORE), scored_cases(AFTER), shared_units(BEFORE, AFTER))


def text_of(table):
    console = Console(width=160, no_color=True)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_figures_count_means_failures_and_usage():
    figures = figures_of(AFTER)
    assert (figures.cases, figures.done, figures.failed) == (4, 4, {"TOOL_TIMEOUT": 1})
    assert figures.overall == {"exact": 0.625, "latency": 2.5}
    assert (figures.prompt_tokens, figures.output_tokens) == (40, 8)
    assert figures.latency_s == {"p50": 3.0, "p95": 4.0}
    by_tag = {(mean.tag, mean.scorer): mean.mean for mean in figures.by_tag}
    assert by_tag["even", "exact"] == 0.75
    missing = figures_of(BEFORE).means[0]
    assert (missing.cases, missing.missing, missing.mean) == (3, 1, 1.0)


def test_tables_and_lines(comparison):
    figures = figures_of(AFTER)
    assert outcome_lines(figures)[0] == "after: 4 of 4 cases; failed: 1 TOOL_TIMEOUT"
    assert re.search(r"exact +4 +0.6250", text_of(means_table(figures.means)))
    assert re.search(r"exact +3 +1.0000 +0.5000 +-0.5000", text_of(differences_table(comparison.overall)))
    assert unpaired_line(comparison) == "4 pairs"
    shown = text_of(differences_table(comparison.by_tag)) + text_of(means_table(figures.by_tag))
    assert "\x1b[2J" not in shown
    assert "[bold]" in shown, "tags are no markup"


def test_the_lowest_cases_are_failed_ones_first():
    lines = lowest_lines(AFTER)
    assert lines[0].startswith("c1: exact 0.000; TOOL_TIMEOUT: ")
    assert lines[1].startswith("c2: exact 0.500; ")
    assert len(lines) == 2


def test_the_report_as_json_has_the_results_and_the_comparison(comparison):
    report = json.loads(json.dumps(as_json(AFTER, figures_of(AFTER), comparison, ["exact: low"], "before")))
    assert report["evaluation"]["name"] == "after"
    assert [result["case"] for result in report["results"]] == ["c0", "c1", "c2", "c3"]
    assert report["comparison"]["baseline"] == "before"
    assert report["comparison"]["overall"][0]["difference"] == -0.5
    assert report["gate"] == {"passed": False, "failures": ["exact: low"]}
    assert "comparison" not in as_json(AFTER, figures_of(AFTER), None, None)


class Parsed(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.text = set(), [], ""

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes += [name for name, _ in attributes]

    def handle_data(self, data):
        self.text += data


def test_the_page_loads_nothing_runs_nothing_and_shows_everything_as_text(comparison):
    page = page_of(AFTER, figures_of(AFTER), comparison, [HOSTILE], "before")
    parsed = Parsed()
    parsed.feed(page)
    assert parsed.tags.isdisjoint({"script", "img", "link", "iframe", "object", "base", "form", "a"})
    assert not {name for name in parsed.attributes if name.startswith("on") or name in {"src", "href"}}
    assert "url(" not in page
    assert "default-src 'none'" in page
    assert parsed.text.count("<script>alert(1)</script>") > 10
    assert "{{ 7 * 7 }}" in parsed.text, "texts are no templates"
    for part in ("Compared with before", "TOOL_TIMEOUT", "confidence 0.500", "seed 18446744073709551615"):
        assert part in parsed.text


def test_a_page_without_a_comparison_and_with_a_passed_gate():
    page = page_of(BEFORE, figures_of(BEFORE), None, [])
    assert "Passed" in page
    assert "Compared" not in page


def test_scores_are_shown_by_variant_beside_the_tags():
    by_case = {
        name: result.model_copy(update={"variant": ["e=long", "e=short"][index % 2]})
        for index, (name, result) in enumerate(AFTER.by_case.items())
    }
    divided = Results(AFTER.header, by_case)
    means = {(mean.tag, mean.scorer): mean.mean for mean in figures_of(divided).by_tag}
    assert (means["e=long", "exact"], means["e=short", "exact"]) == (0.75, 0.5)
    assert means["even", "exact"] == 0.75
    compared = compare(scored_cases(BEFORE), scored_cases(divided), shared_units(BEFORE, divided))
    short = next(row for row in compared.by_tag if (row.tag, row.scorer) == ("e=short", "exact"))
    assert (short.before, short.after) == (1.0, 0.0)
    assert "e=short" in page_of(divided, figures_of(divided), None, None)
