"""The folder of prefixes under the bundled model: what a replica that starts anew finds in it."""

import os
import subprocess
import sys
from contextlib import asynccontextmanager
from functools import partial

import grpc
import pytest

from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic.inference.v1 import inference_service_pb2_grpc as rpc
from pagantic_common.domain.calls.principal import work_of
from pagantic_common.domain.messages import Message, Role
from pagantic_common.telemetry.scope import work_scope
from pagantic_common.workers.thread_workers import ThreadWorkers
from services.inference.adapters import model_file
from services.inference.adapters.default_model import find_default_model
from services.inference.adapters.prompts.prefix_folder import PrefixFolder
from services.inference.app.prefix_storage import BlockStorage, ModelStorage
from services.inference.core.generation import ChatPrompt, Completed, Delta, InferenceRequest, Sampling
from services.inference.core.scheduling.stored_blocks import BLOCK_TOKENS
from services.inference.core.tuning import Tuning
from services.inference.settings import InferenceSettings
from services.inference.wiring.model_loading import ModelLoader
from services.inference.wiring.text_generation import AllWorkers
from tests.support.replicas import Replicas

SYSTEM = " ".join(
    f"Rule {number}: the keeper of lighthouse {number} answers in {number} words." for number in range(22)
)
ROOM = 1 << 30


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "prefixes"


def files(folder):
    return {path.name: path for path in folder.iterdir()}


@asynccontextmanager
async def replica(folder, *, room=ROOM, flash_attention=False):
    """A replica in this process; it yields a function that asks it."""
    settings = InferenceSettings(port=0, context_tokens=1024, parked_mib=200, drafting=False)
    storage = BlockStorage(PrefixFolder(folder, room))
    loader = ModelLoader(settings, find_default_model(), AllWorkers(ThreadWorkers()), partial(ModelStorage, storage))
    loader.set_options(Tuning(threads=1, flash_attention=flash_attention), use_extra_bufts=True)
    served = await loader.load(loader.specs[0])

    async def ask(system=SYSTEM, tenant="default"):
        prompt = ChatPrompt((Message(Role.SYSTEM, system), Message(Role.USER, "Who are you?")))
        request = InferenceRequest(prompt, max_tokens=6, sampling=Sampling(temperature=0))
        text = ""
        with work_scope(principal=work_of(tenant)):
            async for event in served.workload.infer(request):
                match event:
                    case Delta():
                        text += event.content
                    case Completed():
                        return text, event.usage.cached_prompt_tokens
        raise AssertionError("no end")

    try:
        yield ask
    finally:
        await served.workload.close()
        storage.close()


@pytest.mark.whole
async def test_a_prompt_outlives_its_replica_for_its_tenant_and_its_engine(folder):
    async with replica(folder) as ask:
        text, cached = await ask()
        assert (cached, files(folder)) == (0, {})
        assert (await ask())[0] == text
    written = files(folder)
    assert len(written) == 1
    async with replica(folder) as ask:
        assert await ask(tenant="other") == (text, 0)
        again, cached = await ask()
        assert again == text
        assert cached >= BLOCK_TOKENS
    async with replica(folder, flash_attention=True) as ask:
        assert (await ask())[1] == 0
    assert files(folder) == written


@pytest.mark.whole
async def test_a_damaged_file_costs_its_tokens_and_is_deleted(folder):
    async with replica(folder) as ask:
        text, _ = await ask()
        await ask()
    (path,) = files(folder).values()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    async with replica(folder) as ask:
        assert await ask() == (text, 0)
        assert files(folder) == {}
        await ask()
    assert len(files(folder)) == 1


@pytest.mark.whole
async def test_the_folder_keeps_its_bound(folder):
    room = 7_000_000  # one block
    async with replica(folder, room=room) as ask:
        for number in range(2):
            for _ in range(2):
                await ask(f"{number} {SYSTEM}")
    assert 0 < sum(path.stat().st_size for path in files(folder).values()) <= room


# ---- the service as a process


def infer(replicas):
    request = pb.InferRequest(max_tokens=6)
    request.sampling.temperature = 0.0
    request.chat.messages.add(role="ROLE_SYSTEM", content=SYSTEM)
    request.chat.messages.add(role="ROLE_USER", content="Who are you?")
    with grpc.insecure_channel(replicas.addresses[0]) as channel:
        responses = list(rpc.InferenceServiceStub(channel).Infer(request, timeout=120))
    text = "".join(response.delta.content for response in responses)
    return text, responses[-1].completed.usage.cached_prompt_tokens


@pytest.mark.whole
def test_a_service_that_starts_again_is_warm(tmp_path, folder):
    settings = {"PREFIX_FOLDER": str(folder), "PREFIX_FOLDER_MIB": "64", "THREADS": "2"}
    with Replicas(tmp_path, 1, **settings) as replicas:
        text, _ = infer(replicas)
        assert infer(replicas)[0] == text
    with Replicas(tmp_path, 1, **settings) as replicas:
        again, cached = infer(replicas)
    assert again == text
    assert cached >= BLOCK_TOKENS


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            {"PREFIX_FOLDER": "/dev/null/prefixes"},
            "CONFIG_INVALID: the folder of prefixes '/dev/null/prefixes' cannot be",
        ),
        ({"PREFIX_FOLDER": "x", "PARKED_MIB": "0"}, "PREFIX_FOLDER is set and PARKED_MIB is 0"),
        ({"PREFIX_FOLDER_MIB": "0"}, "PAGANTIC_INFERENCE_PREFIX_FOLDER_MIB"),
    ],
)
def test_a_folder_that_cannot_be_used_ends_the_start(tmp_path, settings, reason):
    environment = {f"PAGANTIC_INFERENCE_{name}": value for name, value in {"PORT": "0", **settings}.items()}
    done = subprocess.run(
        [sys.executable, "-m", "services.inference"],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 78
    assert reason in done.stderr


def test_a_model_in_parts_is_told_by_all_of_them(tmp_path):
    parts = [tmp_path / f"m-{number:05}-of-00002.gguf" for number in (1, 2)]
    for part in parts:
        part.write_bytes(part.name.encode())
    (tmp_path / "m-00001-of-00003.gguf").write_bytes(b"of another model")
    (tmp_path / "m.gguf").write_bytes(b"whole")
    before = model_file.digest_of(parts[0])
    assert len(before.split()) == 2
    assert len(model_file.digest_of(tmp_path / "m.gguf").split()) == 1
    parts[1].write_bytes(b"changed")
    assert model_file.digest_of(parts[0]) != before
