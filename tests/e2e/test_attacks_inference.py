"""One request harms no other: attacks on a running inference and constraint service, each with its bound.

The bounds are wide, for machines that are busy; what they stand against took minutes, gigabytes or the process.
"""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import psutil
import pytest

from deploy.local.probing import probe_health
from pagantic.common.v1 import message_pb2
from pagantic.constraint.v1 import constraint_service_pb2, constraint_service_pb2_grpc
from pagantic.inference.v1 import generation_pb2
from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic.inference.v1 import inference_service_pb2_grpc as rpc
from services.inference.adapters.default_model import find_default_model
from tests.support.failing_inference import DEADLY_TEXT
from tests.support.killing import Processes, wait_until
from tests.support.live_requests import REQUIRED
from tests.support.service_process import ServiceProcess

MIB = 1024 * 1024
PRIMES = (9_973, 9_967, 9_949, 9_941, 9_931, 9_929)
LARGE_TEXT = "a1 " * 1_300_000
CHANNEL = [("grpc.max_send_message_length", 8 * MIB), ("grpc.max_receive_message_length", 64 * MIB)]
REFUSED = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}


@pytest.fixture
def stub(system):
    with grpc.insecure_channel(system.address("inference"), options=CHANNEL) as channel:
        yield rpc.InferenceServiceStub(channel)


@pytest.fixture
def pid(system):
    return Processes(system).pids()["inference"]


def rss_mib(pid):
    return psutil.Process(pid).memory_info().rss / MIB


def ask(stub, text="Say hello.", timeout_s=60, **fields):
    return list(stub.Infer(pb.InferRequest(text=text, **{"max_tokens": 4, **fields}), timeout=timeout_s))


def status_of(call):
    try:
        call()
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def regex(pattern):
    return generation_pb2.DecoderConstraint(regex=pattern)


@pytest.mark.parametrize("penalty", [1e-300, 1e-38, 5e-324])
def test_a_penalty_that_ended_the_engine_is_refused_and_the_next_caller_is_served(system, stub, penalty):
    sampling = generation_pb2.Sampling(repetition_penalty=penalty, temperature=1.0)
    for _ in range(2):
        assert status_of(lambda: ask(stub, sampling=sampling)) is grpc.StatusCode.INVALID_ARGUMENT
    assert ask(stub)[-1].HasField("completed")
    assert probe_health(system.address("inference")) == "SERVING"


@pytest.mark.parametrize(
    "keywords_of",
    [
        lambda prime: {"multipleOf": 100 * prime + 61},
        lambda prime: {"allOf": [{"multipleOf": prime}, {"multipleOf": 9_901}]},
    ],
    ids=["one number", "two numbers"],
)
def test_small_costly_constraints_cost_no_memory_and_chats_are_answered_meanwhile(stub, pid, keywords_of):
    """Bounds: 150 MiB in all, 10 s for a chat. Six took 2.4 GiB, and no chat was answered for 100 s."""
    ask(stub, max_tokens=8)
    before = rss_mib(pid)

    def attack(prime):
        schema = json.dumps({"type": "integer", **keywords_of(prime)})
        return status_of(
            lambda: ask(stub, constraint=generation_pb2.DecoderConstraint(schema_json=schema), timeout_s=3)
        )

    with ThreadPoolExecutor(len(PRIMES)) as pool:
        attacks = [pool.submit(attack, prime) for prime in PRIMES]
        time.sleep(0.3)
        started_s = time.monotonic()
        assert ask(stub, max_tokens=8)[-1].HasField("completed")
        assert time.monotonic() - started_s < 10
        codes = {attack.result() for attack in attacks}
    assert codes <= {*REFUSED, grpc.StatusCode.DEADLINE_EXCEEDED}
    assert rss_mib(pid) - before < 150


@pytest.mark.whole
def test_many_small_constraints_stay_within_the_caches_bytes(stub, pid):
    """Bound: 600 MiB, of which 512 are CONSTRAINT_CACHE_MIB; each takes about 13."""
    before = rss_mib(pid)
    for number in range(9_001, 9_121, 2):
        schema = json.dumps({"type": "integer", "multipleOf": number})
        status_of(lambda schema=schema: ask(stub, constraint=generation_pb2.DecoderConstraint(schema_json=schema)))
    assert rss_mib(pid) - before < 600


@pytest.mark.parametrize("pattern", ["(a{1000}){999}", "(((1{1,50}){1,50}){1,50}){1,50}", "a{1,2000}" * 200])
def test_a_slow_mask_stops_no_other_request(stub, pattern):
    """Bound: 5 s for a chat of four tokens beside it."""
    with ThreadPoolExecutor(1) as pool:
        attack = pool.submit(lambda: status_of(lambda: ask(stub, constraint=regex(pattern), max_tokens=20)))
        started_s = time.monotonic()
        ask(stub)
        assert time.monotonic() - started_s < 15
        assert attack.result() in {grpc.StatusCode.OK, *REFUSED}


def test_prompts_beyond_the_window_are_refused_before_they_cost_anything(stub, pid):
    """Bounds: 5 s for six of 3.9 MB, and 150 MiB; each took 150 MiB and more."""
    before = rss_mib(pid)
    started_s = time.monotonic()
    calls = [
        lambda: ask(stub, LARGE_TEXT, max_tokens=1),
        lambda: stub.Tokenize(pb.TokenizeRequest(text=LARGE_TEXT), timeout=60),
        lambda: stub.CountTokens(pb.CountTokensRequest(texts=[LARGE_TEXT]), timeout=60),
        lambda: stub.Score(pb.ScoreRequest(text=LARGE_TEXT, continuations=["x"]), timeout=60),
        lambda: stub.Score(pb.ScoreRequest(text="x", continuations=[LARGE_TEXT]), timeout=60),
        lambda: stub.Detokenize(pb.DetokenizeRequest(tokens=[1] * 4_000_000), timeout=60),
    ]
    with ThreadPoolExecutor(len(calls)) as pool:
        assert set(pool.map(status_of, calls)) == {grpc.StatusCode.INVALID_ARGUMENT}
    assert time.monotonic() - started_s < 15
    assert rss_mib(pid) - before < 150


def test_four_million_tokens_to_detokenize_hold_up_no_probe(system, stub):
    """Bound: 1 s for a probe; it took as long as the work, many seconds."""
    request = pb.DetokenizeRequest(tokens=[1] * 4_000_000)
    with ThreadPoolExecutor(1) as pool:
        attack = pool.submit(lambda: status_of(lambda: stub.Detokenize(request, timeout=60)))
        while not attack.done():
            started_s = time.monotonic()
            assert probe_health(system.address("inference")) == "SERVING"
            assert time.monotonic() - started_s < 1


def test_a_stop_text_does_not_cut_an_enforced_call(stub):
    message = message_pb2.Message(role=message_pb2.ROLE_USER, content="Call it.")
    tool = message_pb2.ToolDefinition(name="a", parameters_json='{"type":"object","additionalProperties":false}')
    chat = generation_pb2.ChatPrompt(messages=[message], tools=[tool], tool_choice=REQUIRED)
    for stop in (":", "{", '"'):
        events = list(stub.Infer(pb.InferRequest(chat=chat, max_tokens=40, stop=[stop]), timeout=60))
        (end,) = [event.candidate_end for event in events if event.WhichOneof("event") == "candidate_end"]
        assert end.finish_reason == generation_pb2.FINISH_REASON_TOOL
        assert [call.name for call in end.tool_calls] == ["a"]


@pytest.mark.whole
def test_a_caller_that_leaves_while_its_text_is_tokenized_never_frees_the_model_under_it(system, tmp_path):
    """Two models in the room of one take turns, and callers leave in between: the process lives on."""
    settings = {
        "models": json.dumps({"second": str(find_default_model())}),
        "memory_limit_mib": 110,
        "min_residence_s": 0,
        "tuning": False,
    }
    process = ServiceProcess("inference", system, tmp_path / "log", **settings)
    with process, grpc.insecure_channel(process.address, options=CHANNEL) as channel:
        stub = rpc.InferenceServiceStub(channel)
        text = "a1 " * 100_000  # just within what the window may hold
        for _ in range(6):
            calls = [stub.CountTokens.future(pb.CountTokensRequest(texts=[text] * 8)) for _ in range(4)]
            time.sleep(0.05)
            for call in calls:
                call.cancel()
            reply = stub.CountTokens(pb.CountTokensRequest(model="second", texts=["x"]), timeout=60)
            assert list(reply.text_tokens) == [1]
        assert probe_health(process.address) == "SERVING"


def test_a_caller_that_comes_while_another_leaves_is_answered(system):
    """Bound: 5 s for each of 60; the answer never came."""
    with grpc.insecure_channel(system.address("constraint")) as channel:
        stub = constraint_service_pb2_grpc.ConstraintServiceStub(channel)
        for number in range(60):
            schema = {"type": "object", "properties": {f"p{number}_{index}": {"type": "string"} for index in range(50)}}
            request = constraint_service_pb2.CompileRequest(schema_json=json.dumps(schema))
            first = stub.Compile.future(request)
            time.sleep(0.002)
            first.cancel()
            started_s = time.monotonic()
            assert stub.Compile(request, timeout=20).engine_text
            assert time.monotonic() - started_s < 15


def test_when_the_engine_dies_every_caller_is_told_to_try_elsewhere_at_once(system, tmp_path):
    """Bound: 5 s for callers that run or come later; the service says that it is not well, or has ended."""
    settings = {"module": "tests.support.failing_inference", "tuning": False}
    process = ServiceProcess("inference", system, tmp_path / "log", **settings)
    with process, grpc.insecure_channel(process.address) as channel:
        stub = rpc.InferenceServiceStub(channel)
        with ThreadPoolExecutor(4) as pool:
            running = [pool.submit(status_of, lambda: ask(stub, "Tell a tale.", max_tokens=2000)) for _ in range(3)]
            time.sleep(1)
            started_s = time.monotonic()
            assert status_of(lambda: ask(stub, DEADLY_TEXT)) is grpc.StatusCode.UNAVAILABLE
            assert {call.result() for call in running} <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.OK}
            assert status_of(lambda: ask(stub)) is grpc.StatusCode.UNAVAILABLE
            assert time.monotonic() - started_s < 15
        assert wait_until(lambda: probe_health(process.address) != "SERVING", "it is not well")
