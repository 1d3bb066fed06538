"""Messages generated from the contracts, sent to every rpc of a running system.

A few for every third rpc in CI; `make fuzz EXAMPLES=2500` sends many for each. Whatever is sent: the call ends with a
status of the taxonomy, no bug shows, health goes on to say that the system serves, and nothing stays behind.
"""

import os
import sys
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagantic.inference.v1 import inference_service_pb2
from pagantic_common.rpc.process.program import RETURN_INTERVAL_S
from tests.fuzz.messages import requests
from tests.fuzz.target import DEADLINE, METHODS, running_target, valid_requests
from tests.support.examples import sample

AT_EACH_COMMIT = 2
EXAMPLES = int(os.environ.get("PAGANTIC_FUZZ_EXAMPLES") or AT_EACH_COMMIT)
NAMES = sample(sorted(METHODS), 3 if EXAMPLES == AT_EACH_COMMIT else 1)
# Calls that decode take longer, so that fewer are made.
DECODING = frozenset(
    {
        "InferenceService/Infer",
        "InferenceService/Score",
        "InferenceService/Embed",
        "InferenceService/ScorePairs",
        "OrchestratorService/Execute",
        "OrchestratorService/ExecuteStream",
        "OrchestratorService/CreatePlan",
        "OrchestratorService/Embed",
        "OrchestratorService/Rerank",
        "ConstraintService/Enforce",
        "ConstraintService/ValidateSemantics",
    }
)
SHARE_OF_DECODING = 0.25
pytestmark = pytest.mark.timeout(120 + EXAMPLES // 4)
MAX_NEW_DESCRIPTORS = 40
MAX_NEW_MIB = 200
IDLE_WITHIN_S = 30
SMALL_WITHIN_S = 2 * RETURN_INTERVAL_S
PATIENT_S = 30


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    with running_target(tmp_path_factory.mktemp("fuzz")) as running:
        for name in NAMES:
            for valid in valid_requests(name):
                running.call(name, valid, timeout_s=30)
        before = running.footprint()
        started_s = time.monotonic()
        yield running
        seconds = time.monotonic() - started_s
        assert is_idle(running)
        limit = before[0] + MAX_NEW_MIB
        after = footprint_within(running, limit)
        report(running, seconds, before, after)
        assert after[0] <= limit
        assert after[1] <= before[1] + MAX_NEW_DESCRIPTORS


def report(target, seconds, before, after):
    """Show what was sent, what it was answered with, and what it left."""
    lines = [
        f"{sum(target.statuses.values())} calls in {seconds:.0f} s",
        f"memory {before[0]:.0f} MiB before, {after[0]:.0f} after; descriptors {before[1]} before, {after[1]} after",
        *(f"{count:7} {status:20} {name}" for (name, status), count in sorted(target.statuses.items())),
    ]
    sys.stderr.write("\n".join(["", *lines, ""]))


def is_idle(target):
    """Wait until nothing runs or waits in the engine: each caller that left, left nothing behind."""
    end_s = time.monotonic() + IDLE_WITHIN_S
    while time.monotonic() < end_s:
        _, load, _ = target.call("InferenceService/GetLoad", inference_service_pb2.GetLoadRequest())
        if load is not None and not load.queued_requests and not load.running_sequences:
            return True
        time.sleep(0.2)
    return False


def footprint_within(target, limit_mib):
    """Wait until the system has given back what it freed; returns its footprint, which may still be over the limit."""
    end_s = time.monotonic() + SMALL_WITHIN_S
    while time.monotonic() < end_s and target.footprint()[0] > limit_mib:
        time.sleep(0.2)
    return target.footprint()


def wrong_of(target, name, request):
    """Make a call and return what is wrong with its answer, "" for nothing; a call that decodes may take its time."""
    status, _, wrong = target.call(name, request)
    if status is DEADLINE and name not in DECODING:
        status, _, wrong = target.call(name, request, timeout_s=PATIENT_S)
        return wrong or (f"no answer in {PATIENT_S} s" if status is DEADLINE else "")
    return wrong


@pytest.mark.sampled
@pytest.mark.parametrize("name", NAMES)
def test_no_request_does_more_than_fail(name, target):
    count = max(2, round(EXAMPLES * SHARE_OF_DECODING)) if name in DECODING else EXAMPLES

    @settings(
        max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=True
    )
    @given(requests(METHODS[name].input_type, valid_requests(name)))
    def send(request):
        assert not wrong_of(target, name, request)
        assert target.is_serving()

    send()


@pytest.mark.sampled
@pytest.mark.parametrize("name", NAMES)
def test_no_bytes_do_more_than_fail(name, target):
    whole = [valid.SerializeToString() for valid in valid_requests(name)] or [b"\x0a\x01a"]

    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.binary(max_size=200) | damaged(whole))
    def send(payload):
        assert not wrong_of(target, name, payload)
        assert target.is_serving()

    send()


def damaged(payloads):
    """Strategy for payloads that were cut, or have other bytes at some place."""

    def damage(payload, at, put):
        place = at % (len(payload) + 1)
        return payload[:place] + put if len(put) < 2 else payload[:place] + put + payload[place + len(put) :]

    return st.builds(damage, st.sampled_from(payloads), st.integers(0, 10_000), st.binary(max_size=4))
