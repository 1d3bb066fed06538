"""The content of the operator's files and packages, read at startup."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pagantic_common.domain.text.calibration import LabelCalibration
from services.orchestrator.adapters.operator_files import (
    PromptFolder,
    load_custom_steps,
    read_calibrations,
    read_experiments,
)
from services.orchestrator.core.admission.experiments import Experiment, Experiments
from services.orchestrator.ports.services import CustomStep
from services.orchestrator.settings import OrchestratorSettings


@dataclass(frozen=True, slots=True)
class Files:
    """The prompt templates, the calibrations of decisions, the step kinds by name, and the experiments."""

    prompts: PromptFolder
    calibrations: Mapping[str, LabelCalibration]
    custom_steps: Mapping[str, CustomStep]
    experiments: tuple[Experiment, ...]

    def experiments_for(self, may_use: Callable[[str, str], bool]) -> Experiments:
        """Return the experiments. A tenant takes part in an experiment only if it may use all variants' models."""
        return Experiments(self.experiments, may_use)


def read_files(settings: OrchestratorSettings) -> Files:
    """Read the files. Raises InvalidRequest if their content is invalid."""
    prompts = PromptFolder(settings.prompt_folder)
    return Files(
        prompts,
        read_calibrations(settings.calibration_folder),
        load_custom_steps(settings.step_kinds),
        read_experiments(settings.experiments_file, prompts.templates()),
    )
