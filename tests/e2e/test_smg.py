"""SMG, unchanged, before replicas: events tell it whose cache has the beginning of a prompt."""

import json
import random

import grpc
import httpx
import pytest

from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic.inference.v1 import inference_service_pb2_grpc as rpc
from services.inference.adapters.default_model import find_default_model
from tests.support.killing import wait_until
from tests.support.needs import SMG
from tests.support.replicas import Replicas, program_of
from tests.support.smg import Smg
from tests.support.tokenizer_folder import write_tokenizer

WORDS = ("river", "stone", "lamp", "harbour", "winter", "quiet", "storm", "letter", "north", "glass")
TOPICS = 6
TOPIC_WORDS = 150


@pytest.fixture(scope="module")
def program():
    return program_of(SMG, "smg")


@pytest.fixture(scope="module")
def replicas(tmp_path_factory, program):  # noqa: ARG001 - without the program nothing need be started
    folder = tmp_path_factory.mktemp("smg")
    tokenizer = write_tokenizer(find_default_model(), folder / "tokenizer")
    settings = {"VLLM_PROTOCOL": "true", "VLLM_KV_EVENTS": "true", "VLLM_TOKENIZER_FOLDER": str(tokenizer)}
    with Replicas(folder, 2, **settings) as replicas:
        yield replicas


@pytest.fixture
def start(program, replicas, tmp_path):
    """Return what starts a gateway, which has no memory of earlier ones."""
    return lambda: Smg(program, replicas.addresses, replicas.model, tmp_path / "smg.log")


def topic(seed):
    return " ".join(random.Random(seed).choices(WORDS, k=TOPIC_WORDS))  # noqa: S311 - no secret


def load_of(address):
    with grpc.insecure_channel(address) as channel:
        return rpc.InferenceServiceStub(channel).GetLoad(pb.GetLoadRequest(), timeout=10)


def ask_directly(address, system):
    request = pb.InferRequest(max_tokens=2)
    request.chat.messages.add(role="ROLE_SYSTEM", content=system)
    request.chat.messages.add(role="ROLE_USER", content="Where?")
    with grpc.insecure_channel(address) as channel:
        assert list(rpc.InferenceServiceStub(channel).Infer(request, timeout=60))


def cached_tokens(answer):
    return ((answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens")) or 0


@pytest.mark.timeout(400)
def test_a_prompt_goes_to_the_replica_that_has_its_beginning_also_after_a_restart(start, replicas):
    for number in range(TOPICS):
        ask_directly(replicas.addresses[number % 2], topic(f"first {number}"))
    for question in ("Why?", "Since when?"):  # a gateway that has just started has sent nothing that it could remember
        with start() as smg:
            for number in range(TOPICS):
                answer = smg.chat(topic(f"first {number}"), question)
                assert cached_tokens(answer) > TOPIC_WORDS, number


@pytest.mark.timeout(400)
def test_what_the_gateway_sent_itself_is_found_after_its_restart(start, replicas):
    before = [load_of(address).output_tokens_total for address in replicas.addresses]
    with start() as smg:
        for number in range(TOPICS):
            assert cached_tokens(smg.chat(topic(f"second {number}"), "Where?")) < TOPIC_WORDS
        after = [load_of(address).output_tokens_total for address in replicas.addresses]
        assert all(now > then for now, then in zip(after, before, strict=True))  # both have some of them
    with start() as smg:
        for number in range(TOPICS):
            assert cached_tokens(smg.chat(topic(f"second {number}"), "Why?")) > TOPIC_WORDS, number
        assert smg.metric("smg_kv_event_gaps_total") == 0


@pytest.mark.timeout(400)
def test_answers_stream_and_a_caller_that_leaves_ends_its_own(start, replicas):
    with start() as smg:
        said = []
        body = smg.body(topic("third"), "Count to ten.", max_tokens=20, stream=True)
        with httpx.stream("POST", f"{smg.url}/v1/chat/completions", json=body, timeout=60) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    said += [choice["delta"].get("content") or "" for choice in json.loads(line[6:])["choices"]]
        whole = smg.chat(topic("third"), "Count to ten.", max_tokens=20)
        assert "".join(said) == whole["choices"][0]["message"]["content"]
        body = smg.body(topic("third"), "Count to a thousand.", max_tokens=500, stream=True)
        with httpx.stream("POST", f"{smg.url}/v1/chat/completions", json=body, timeout=60) as reply:
            next(reply.iter_lines())
        wait_until(lambda: not any(load_of(one).running_sequences for one in replicas.addresses), "the decoding stops")
