"""The bench of modes: what it sends, and what it makes of the results."""

import csv
import json
import xml.etree.ElementTree as ET
from collections import Counter

import pytest

from gateway.evaluation.running.results import Header, Result, ResultsFile, StoredScore
from gateway.evaluation.suite.reading import suite_of as parsed_suite
from gateway.evaluation.suite.requests import Settings, request_of
from pagantic_common.grammar.expressions import Expression, as_doubles
from tests.bench.modes import report
from tests.bench.modes.figures import difference, figures_of, read
from tests.bench.modes.packages import fetch_set
from tests.bench.modes.plots import draw
from tests.bench.modes.suites import ARMS, BLOCK, CHAT, HIDDEN, RULES, SHOWN, TITLES, suite_of
from tests.bench.modes.tasks import TASKS, samples_of

PROBLEM = {"passage": "There are 3 boxes of 4 lamps.", "question": "How many lamps are there?", "answer": "12 lamps"}
REVIEW = {"text": "a warm , funny film ( mostly ) .", "label": "1", "source": "rotten_tomatoes"}


@pytest.fixture
def paths(tmp_path):
    problems, reviews = tmp_path / "asdiv.jsonl", tmp_path / "polarity.csv"
    asked = [{**PROBLEM, "passage": f"Shelf {number}."} for number in range(25)]
    problems.write_text("\n".join(json.dumps(one) for one in [*asked, {**PROBLEM, "answer": "5:45"}]))
    with reviews.open("w", newline="") as file:
        writer = csv.DictWriter(file, REVIEW)
        writer.writeheader()
        writer.writerows([REVIEW, {**REVIEW, "label": "0"}, {**REVIEW, "source": "imdb"}])
    return {"asdiv": problems, "polarity": reviews}


def test_samples_have_a_label_that_can_be_scored(paths):
    problems = samples_of(TASKS["asdiv"], paths["asdiv"])
    reviews = samples_of(TASKS["polarity"], paths["polarity"])
    assert {sample.expected for sample in problems} == {12}
    assert len(problems) == 25
    assert sorted(sample.expected for sample in reviews) == ["negative", "positive"]
    assert {sample.input for sample in reviews} == {"a warm, funny film (mostly)."}


@pytest.mark.parametrize(
    ("task", "value", "holds"),
    [
        ("asdiv", {"calculation": "3 * 4 = 12", "answer": 12}, True),
        ("asdiv", {"calculation": "3 * 4 = 12", "answer": 2}, False),
        ("asdiv", {"calculation": "3 * 4 = 12.5", "answer": 12}, False),
        ("polarity", {"quote": "warm, funny", "opinion": "positive"}, True),
        ("polarity", {"quote": "warm and funny", "opinion": "positive"}, False),
    ],
)
def test_the_rule_holds_for_answers_that_agree_with_themselves(paths, task, value, holds):
    sample = samples_of(TASKS[task], paths[task])[0]
    assert Expression(sample.rule).evaluate({"value": as_doubles(value)}) is holds


@pytest.mark.parametrize("task", TASKS)
def test_each_block_asks_the_same_in_every_arm(paths, task):
    samples = samples_of(TASKS[task], paths[task])
    suite = parsed_suite(suite_of("block", TASKS[task], samples, 0))
    keys = Counter(case.key for case in suite.cases)
    assert set(keys.values()) == {len(ARMS)}
    assert len(keys) == min(BLOCK, len(samples))
    requests = {case.tags[0]: request_of(suite, case, Settings(), "id") for case in suite.cases}
    assert [requests[f"votes-{n}"].voting.n for n in (1, 3, 5, 9)] == [1, 3, 5, 9]
    assert len({request.hints.seed for request in requests.values() if request.voting.n}) == 4
    assert requests[RULES].rules[0].expression == samples[min(BLOCK, len(samples)) - 1].rule
    assert requests[HIDDEN].output.schema_in_prompt != requests[SHOWN].output.schema_in_prompt
    assert not requests[CHAT].output.schema_json


def test_blocks_have_different_samples_and_begin_with_different_arms(paths):
    samples = samples_of(TASKS["asdiv"], paths["asdiv"])
    blocks = [suite_of("block", TASKS["asdiv"], samples, number)["cases"] for number in range(3)]
    names = [case["name"] for cases in blocks for case in cases]
    assert len(set(names)) == len(names) == 25 * len(ARMS)
    assert [cases[0]["tags"] for cases in blocks] == [[ARMS[0]], [ARMS[1]], [ARMS[2]]]


def test_a_file_of_another_content_is_refused(tmp_path):
    (tmp_path / "asdiv.jsonl").write_text("{}")
    with pytest.raises(ValueError, match="SHA-256"):
        fetch_set("asdiv", tmp_path)


@pytest.fixture
def measured(tmp_path, paths):
    """Results of ten samples, of which CHAT has five right, rules nine and one failed, and all others every one."""
    task = TASKS["asdiv"]
    written = suite_of("asdiv-0.5b-01", task, samples_of(task, paths["asdiv"]), 0)
    suite = parsed_suite(written)
    header = {"id": "1", "name": suite.name, "started_at": "", "suite_hash": suite.hash, "settings": {}, "versions": {}}
    with ResultsFile(tmp_path / "asdiv-0.5b-01.jsonl") as file:
        file.begin(Header(suite=suite.as_json(), units={"right": ""}, **header))
        for case in suite.cases:
            file.append(result_of(case))
    return read([tmp_path / "asdiv-0.5b-01.jsonl"])


def result_of(case):
    arm, number = case.tags[0], int(case.name[-4:])
    failed = arm == RULES and number == 10
    right = not failed and (arm != CHAT or number <= 5)
    output = '{"calculation": "3 * 4 = 12", "answer": 12}'
    if arm == SHOWN and number <= 4:
        output = '{"calculation": "3 * 4 = 13", "answer": 12}'
    return Result(
        case=case.name,
        key=case.key,
        request_id="r",
        scores={name: StoredScore(value=x) for name, x in {"right": right, "tokens": 100, "cost": 0.1}.items()},
        output="" if failed else "Answer: 12" if arm == CHAT else output,
        error="VALIDATION_RULE_FAILED" if failed else "",
        output_tokens=200 if number == 1 else 20,
        latency_s=2.0 if arm == CHAT else 3.0,
    )


def test_a_failed_case_is_wrong_and_counted(measured):
    found = figures_of(measured, RULES, CHAT)
    assert (found.cases, found.right, found.answered, found.failed) == (10, 0.9, 1.0, {"VALIDATION_RULE_FAILED": 1})
    assert found.gain.difference == pytest.approx(0.4)
    assert figures_of(measured, CHAT, CHAT).gain is None


def test_the_share_for_which_the_rule_holds_is_of_documents(measured):
    assert figures_of(measured, SHOWN, CHAT).holds == 0.6
    assert figures_of(measured, CHAT, CHAT).holds is None


def test_differences_are_paired(measured):
    row = difference(measured, CHAT, SHOWN)
    assert (row.pairs, row.before, row.after) == (10, 0.5, 1.0)
    assert row.interval.low > 0


@pytest.mark.usefixtures("measured")
def test_samples_without_a_result_in_every_arm_are_left_out(tmp_path):
    lines = (tmp_path / "asdiv-0.5b-01.jsonl").read_text().splitlines()
    (tmp_path / "short.jsonl").write_text("\n".join(lines[:-3]) + "\n")
    assert read([tmp_path / "short.jsonl"]).cases == 7
    (tmp_path / "begun.jsonl").write_text(lines[0] + "\n")
    assert read([tmp_path / "begun.jsonl"]) is None


def test_the_table_has_a_row_for_each_arm_with_ratios_to_chat(measured):
    lines = list(report.table(measured))
    assert len(lines) == 2 + len(ARMS)
    assert "| CHAT | 50 %, 1 cut |" in lines[2]
    assert "1.5x" in lines[3]
    assert "90 %, 1 failed" in lines[-1]


def test_the_p_of_a_pair_is_adjusted_for_the_number_of_pairs(measured):
    lines = list(report.pairs(measured))
    assert len(lines) == len(report.PAIRS)
    assert all(line.endswith("adjusted p 1.00") for line in lines)  # At most two pairs differ, in one case of ten.


def test_the_plot_is_an_image_with_every_arm(measured):
    rows = [figures_of(measured, arm, CHAT) for arm in ARMS]
    image = ET.fromstring(draw({"0.5b": rows, "1.5b": rows}))  # noqa: S314 - written above
    texts = [text.text for text in image.iter("{http://www.w3.org/2000/svg}text")]
    assert set(TITLES.values()) <= set(texts)
    assert "0.5b, 10 samples" in texts
