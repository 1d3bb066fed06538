"""Prompts that the operator declares shared: what tenants share in the cache, and the folder that declares them."""

import pytest

from pagantic_common.domain.calls.principal import work_of
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.messages import Message, Role
from pagantic_common.telemetry.scope import work_scope
from pagantic_common.testing.scripted_engine import ScriptedEngine
from services.inference.adapters.prompts import shared_prompt_folder
from services.inference.adapters.prompts.shared_prompt_folder import read_shared_prompts
from services.inference.app.scoring import score_continuations
from services.inference.core.generation import ChatPrompt, Completed, InferenceRequest
from tests.support.inference_app import generation_over

DECLARED = "You keep the lighthouse of the bay."
BEGINNING = len(f"system: {DECLARED}".encode())  # the scripted engine has a token for each byte


def asked(system, question="Who are you?"):
    return ChatPrompt((Message(Role.SYSTEM, system), Message(Role.USER, question)))


async def cached(generation, tenant, prompt):
    with work_scope(principal=work_of(tenant)):
        async for event in generation.infer(InferenceRequest(prompt, max_tokens=1)):
            if isinstance(event, Completed):
                return event.usage.cached_prompt_tokens
    raise AssertionError("no end")


@pytest.fixture
async def generation():
    made = generation_over(ScriptedEngine("x"), shared_prompts=[DECLARED])
    yield made
    await made.close()


async def test_tenants_share_a_declared_beginning_and_nothing_after_it(generation):
    prompt = asked(f"{DECLARED}\n\nYou are {'very ' * 10}old.")
    counts = [await cached(generation, tenant, prompt) for tenant in ("a", "b", "a", "default")]
    assert counts[0] == 0
    assert counts[1] == BEGINNING
    assert counts[2] > BEGINNING + 60
    assert counts[3] == counts[1]


@pytest.mark.parametrize("end", ["", " Be brief.", "\n- Be brief.", "!"])
async def test_a_system_message_may_be_the_declared_text_or_continue_it(generation, end):
    assert [await cached(generation, tenant, asked(DECLARED + end)) for tenant in ("a", "b")] == [0, BEGINNING]


@pytest.mark.parametrize("system", [DECLARED[:-1], f"Now: {DECLARED}", DECLARED.lower()])
async def test_anything_else_is_each_tenants_own(generation, system):
    assert [await cached(generation, tenant, asked(system)) for tenant in ("a", "b")] == [0, 0]


async def test_scores_share_in_the_same_way(generation):
    prompt, counts = asked(f"{DECLARED}\n\nYou are old."), []
    for tenant in ("a", "b", "b"):
        with work_scope(principal=work_of(tenant)):
            _scores, usage = await score_continuations(generation, prompt, ["yes"])
        counts.append(usage.cached_prompt_tokens)
    assert counts[0] == 0
    assert counts[1] == BEGINNING
    assert counts[2] > counts[1]


def test_a_folder_declares_its_texts(tmp_path):
    (tmp_path / "b.txt").write_text("second\n")
    (tmp_path / "a.md").write_text("\ufefffirst", encoding="utf-8")
    (tmp_path / "notes.rst").write_text("not one")
    assert read_shared_prompts(str(tmp_path)) == ["first", "second"]
    assert read_shared_prompts("") == []


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.txt", b"\xff", "cannot be read"),
        ("a.txt", b" \n", "is empty"),
        ("a.txt", b"x" * 300_000, "has 300000 bytes"),
    ],
)
def test_a_text_that_cannot_be_used_is_named(tmp_path, name, data, words):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InvalidRequest, match=words) as refused:
        read_shared_prompts(str(tmp_path))
    assert name in str(refused.value)


def test_a_folder_that_cannot_be_used_is_named(tmp_path, monkeypatch):
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_shared_prompts(str(tmp_path / "none"))
    monkeypatch.setattr(shared_prompt_folder, "MAX_PROMPTS", 1)
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("x")
    with pytest.raises(InvalidRequest, match="has 2 of them"):
        read_shared_prompts(str(tmp_path))
