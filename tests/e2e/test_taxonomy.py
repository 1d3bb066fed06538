"""Every code of the taxonomy, provoked through real gRPC; run with -s to see the matrix.

The rows are in `failing_services` and `failing_requests`.
"""

from contextlib import ExitStack

import pytest

from pagantic.common.v1 import error_pb2
from pagantic_common.telemetry.names import ERROR_DOMAIN
from tests.e2e import failing_requests, failing_services
from tests.support.taxonomy import ACCESS, OF_COMMANDS, OF_STORAGE, REPLY, TABLE, mode_of, name_of, told_by
from tests.support.taxonomy_world import World

ROWS = [*failing_services.ROWS, *failing_requests.ROWS]
MATRIX = []


@pytest.fixture(scope="module")
def world(system, tmp_path_factory):
    with ExitStack() as stack:
        yield World(system, tmp_path_factory.mktemp("taxonomy"), stack)


@pytest.mark.parametrize(
    "one",
    [pytest.param(row, marks=pytest.mark.whole) if row.is_slow else row for row in ROWS],
    ids=lambda one: f"{one.code}-{one.provoke.__name__}",
)
def test_the_code_is_told_as_the_contract_says(one, world):
    work, response = one.provoke(world)
    error = response.error
    category = TABLE[one.code][0]
    suffix = "" if category == "CANCELLATION" else "_FAILURE"
    assert name_of(error.code) == one.code, error
    assert error_pb2.ErrorCategory.Name(error.category) == f"ERROR_CATEGORY_{category}{suffix}"
    assert error.retryable == one.retryable
    assert error.message
    answer = told_by(lambda: one.ask(world)) if one.ask is not None else None
    MATRIX.append((one, mode_of(work), answer))
    if answer is not None:
        check_answer(one.code, answer)


def check_answer(code, answer):
    assert answer.status == TABLE[code][2]
    if code != "CANCELLED_SIGNAL":  # which gRPC tells by itself
        assert answer.reason == code
        assert answer.domain == ("" if answer.status == REPLY else ERROR_DOMAIN)
    assert answer.has_retry or code != "INFERENCE_OVERLOADED"


def test_every_code_has_a_row_and_the_matrix_shows_it():
    codes = {name_of(value) for value in error_pb2.ErrorCode.values()} - {"UNSPECIFIED"}
    # test_identity provokes the codes of ACCESS.
    assert codes == set(TABLE) | set(ACCESS) | OF_STORAGE | OF_COMMANDS
    assert {one.code for one in ROWS} == set(TABLE)
    asked = {one.code for one in ROWS if one.ask is not None}
    assert asked >= {code for code, (_, _, status) in TABLE.items() if status not in (REPLY, None)}
    for one, mode, answer in MATRIX:
        between = answer.text if answer is not None else ""
        print(" | ".join([one.code, TABLE[one.code][0], str(one.retryable), mode, one.how, between]))  # noqa: T201
