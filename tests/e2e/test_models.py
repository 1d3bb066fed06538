"""A model from a local hub to an answer: pulled with an interruption, served by name, listed, unloaded, deleted."""

import json
import sys

import pytest

from services.inference.adapters.default_model import find_default_model
from tests.e2e.conftest import System
from tests.support.model_hub import ModelHub

UP = (sys.executable, "-m", "deploy.local", "up")
DOWN = (sys.executable, "-m", "deploy.local", "down")
NAME = "owner/smol/smol.gguf"
ALIAS = "smol:135m"


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """A system whose default model is served by the name of a model that a hub has, which nobody has pulled yet."""
    own = System(tmp_path_factory.mktemp("named"))
    with ModelHub().serving() as hub:
        hub.files[NAME] = find_default_model().read_bytes()
        own.environment |= {
            "PAGANTIC_MODELS_FOLDER": str(tmp_path_factory.mktemp("folder")),
            "PAGANTIC_MODELS_HUB_ENDPOINT": hub.url,
            "PAGANTIC_INFERENCE_MODEL_PATH": ALIAS,
            "PAGANTIC_INFERENCE_EMBEDDING_MODEL": "none",
        }
        yield own, hub
        own.run(*DOWN)


def listed(own):
    return {model["name"]: model for model in json.loads(own.run("pagantic", "models", "--json").stdout)["models"]}


def test_a_start_with_a_model_that_was_not_pulled_names_the_command(named):
    own, _ = named
    refused = own.run(*UP, check=False)
    assert refused.returncode == 3
    assert "did you mean smollm2:135m? `pagantic models` lists what is here" in refused.stderr


@pytest.mark.whole
def test_a_pulled_model_answers_and_is_kept_while_it_is_served(named):
    own, hub = named
    hub.cuts = [30_000_000]
    own.run("pagantic", "pull", f"hf:{NAME}", "--as", ALIAS)
    assert hub.sent_bytes() == [0, 30_000_000]
    assert (listed(own)[ALIAS]["served"], listed(own)[ALIAS]["context_window"]) == (False, 8192)

    own.run(*UP)
    assert own.run("pagantic", "chat", "Say hello.", "--max-tokens", "4").stdout.strip()
    model = listed(own)[ALIAS]
    assert (model["default"], model["loaded"], model["memory_bytes"]) == (True, True, len(hub.files[NAME]))

    own.run("pagantic", "models", "unload", ALIAS)
    assert not listed(own)[ALIAS]["loaded"]
    kept = own.run("pagantic", "rm", ALIAS, check=False)
    assert (kept.returncode, f"a service serves '{ALIAS}'" in kept.stderr) == (3, True)
    own.run("pagantic", "models", "load", ALIAS)
    assert own.run("pagantic", "chat", "Say hello.", "--model", ALIAS, "--max-tokens", "4").stdout.strip()

    own.run(*DOWN)
    own.run("pagantic", "rm", ALIAS)
    assert own.run("pagantic", "models", check=False).returncode == 7
