"""The models of a service at its start: its own, remote ones and routes, the default first."""

import pytest

from pagantic_common.domain.errors import ErrorCode, InvalidRequest, PreconditionFailed
from pagantic_common.workers.thread_workers import ThreadWorkers
from services.inference.adapters.default_model import find_default_model
from services.inference.settings import InferenceSettings
from services.inference.wiring.model_loading import ModelLoader
from services.inference.wiring.remote_models import make_models
from services.inference.wiring.text_generation import AllWorkers
from tests.support.remote_app import remote

FAR = {"far": remote("https://engine.example/v1")}
ROUTE = {"best": {"models": ["far", "own"]}}


def names_of(*, has_own=True, **settings):
    if not has_own:
        settings["model_path"] = "none"
    made = InferenceSettings(port=0, model_name="own", **settings)
    loader = ModelLoader(made, find_default_model() if has_own else None, AllWorkers(ThreadWorkers()))
    return [info.name for info in make_models(made, loader).infos]


def test_the_own_model_is_the_default_and_embeddings_are_last():
    assert names_of(remotes=FAR, routes=ROUTE) == ["own", "far", "best", "all-MiniLM-L6-v2"]


@pytest.mark.parametrize("default", ["far", "best"])
def test_another_alias_can_be_the_default(default):
    others = [name for name in ("own", "far", "best", "all-MiniLM-L6-v2") if name != default]
    assert names_of(remotes=FAR, routes=ROUTE, default_model=default) == [default, *others]


def test_a_service_may_have_no_model_of_its_own():
    assert names_of(has_own=False, remotes=FAR, default_model="far", embedding_model="none") == ["far"]


def test_a_remote_model_may_stand_for_the_bundled_one():
    far = {"all-MiniLM-L6-v2": remote("https://engine.example/v1", serves="embeddings")}
    assert names_of(remotes=far) == ["own", "all-MiniLM-L6-v2"]


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"default_model": "fra"}, "DEFAULT_MODEL is 'fra': the models are 'own', 'far'"),
        ({"remotes": {"own": FAR["far"]}}, "alias 'own' of REMOTES or ROUTES is the alias of a local model"),
        ({"routes": {"best": {"models": ["fra"]}}}, "route 'best' names model 'fra'"),
    ],
)
def test_an_alias_that_is_not_there_or_taken_ends_the_start(settings, wrong):
    with pytest.raises(InvalidRequest, match=wrong):
        names_of(**{"remotes": FAR, **settings})


def test_a_missing_key_ends_the_start():
    with pytest.raises(PreconditionFailed, match="environment variable NO_SUCH_KEY must hold its key") as refused:
        names_of(remotes={"far": FAR["far"] | {"api_key_env": "NO_SUCH_KEY"}})
    assert refused.value.code is ErrorCode.CONFIG_NO_ENGINE
