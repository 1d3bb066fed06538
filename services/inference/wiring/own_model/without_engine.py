"""Opens the inference service where the package that decodes is not installed: other engines answer.

Nothing that this module imports loads llama.cpp.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from pagantic_common.domain.errors import ErrorCode, PreconditionFailed
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.telemetry.logging import get_logger
from services.inference.app.models import ModelSpec, ServedModel
from services.inference.core.tuning.choosing import Tuning
from services.inference.settings import InferenceSettings
from services.inference.wiring.all_models import make_models
from services.inference.wiring.load_metrics import report_load
from services.inference.wiring.own_model.untuned import open_untuned
from services.inference.wiring.registrations import make_registrations

log = get_logger(__name__)


class NoLocalModels:
    """The models that are decoded here: none."""

    specs: Sequence[ModelSpec] = ()
    bundled: Sequence[ModelSpec] = ()

    def set_options(self, tuning: Tuning, *, use_extra_bufts: bool) -> None:
        """Do nothing: no model is loaded with the options."""

    async def load(self, spec: ModelSpec) -> ServedModel:  # noqa: ARG002
        """Raise PreconditionFailed (CONFIG_NO_ENGINE)."""
        raise _missing_engine()


@asynccontextmanager
async def open_app(settings: InferenceSettings) -> AsyncIterator[Sequence[Registration]]:
    """Yield the registrations for the models of REMOTES and ROUTES.

    Raises PreconditionFailed (CONFIG_NO_ENGINE) for settings that name a model to decode here, or none at all.
    """
    if settings.has_own_model or settings.models or not settings.remotes:
        raise _missing_engine()
    log.info("other engines alone answer: llama-cpp-python is not installed")
    local = NoLocalModels()
    models = make_models(settings, local)
    report_load(models)
    async with open_untuned(settings, models, local) as tuner:
        yield make_registrations(settings, models, tuner)


def _missing_engine() -> PreconditionFailed:
    return PreconditionFailed(
        "the package llama-cpp-python, which runs models, is not installed: run `make setup` in a checkout; "
        "elsewhere `pip install 'pagantic[server,engine]'`, which compiles it",
        code=ErrorCode.CONFIG_NO_ENGINE,
    )
