"""Makes the tuner of the default model, and applies its measurements to the loaded models."""

from __future__ import annotations

from collections.abc import Mapping

from pagantic_common.domain.messages import ModelInfo
from pagantic_common.telemetry.clock import SystemClock
from pagantic_common.telemetry.logging import get_logger
from services.inference.adapters.tuning import ChildProber, TuningFile
from services.inference.app.generation import Generation
from services.inference.app.models import Models
from services.inference.app.tuning import Tuner
from services.inference.core.embedding import CAPABILITY
from services.inference.core.tuning import NAMES, Tuning, untuned
from services.inference.settings import AUTO, InferenceSettings
from services.inference.wiring.model_loading import ModelLoader

log = get_logger(__name__)


def make_tuner(
    settings: InferenceSettings, file: TuningFile, measured: Tuning | None, models: Models, loader: ModelLoader
) -> Tuner:
    """Return the tuner of the default model; `measured` is the tuning of an earlier start."""
    given = {name: value for name in NAMES if (value := getattr(settings, name)) != AUTO}
    prober: ChildProber | None = ChildProber(file.machine, lambda: file.use_extra_bufts)
    if note := _why_not_measured(settings, models.infos[0], given):
        prober = measured = None

    async def apply(tuning: Tuning) -> None:
        loader.set_options(tuning, use_extra_bufts=file.use_extra_bufts)
        for served in models.loaded:
            if isinstance(served.workload, Generation):
                await served.workload.retune(tuning)

    return Tuner(
        untuned(file.machine.cores, is_on_gpu=bool(settings.gpu_layers)),
        given=given,
        prober=prober,
        store=file,
        in_use=models.in_use,
        apply=apply,
        clock=SystemClock(),
        measured=measured,
        note=note,
    )


async def run_tuner(tuner: Tuner) -> None:
    """Measure until cancelled; an error ends the measuring, not the service."""
    try:
        await tuner.run()
    except Exception:
        log.exception("measuring has ended")


def _why_not_measured(settings: InferenceSettings, model: ModelInfo, given: Mapping[str, object]) -> str:
    if not settings.tuning:
        return "PAGANTIC_INFERENCE_TUNING is false"
    if CAPABILITY in model.capabilities:
        return "the model decodes no text"
    if settings.gpu_layers:
        return "layers are on a GPU, which may have no room to measure beside"
    if set(NAMES) - {"spin_count"} <= set(given):
        return "every setting is set"
    return ""
