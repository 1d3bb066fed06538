"""Reads the file of experiments: a JSON object of the experiments in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.storage.json_file import read_json_file
from services.orchestrator.core.admission.experiments import Experiment, Variant
from services.orchestrator.core.model.request import Mode
from services.orchestrator.ports.services import ConfiguredTemplate

EXPERIMENTS_FILE: Final = "EXPERIMENTS_FILE"
MAX_EXPERIMENTS: Final = 16  # Their names are labels of metrics.
MAX_VARIANTS: Final = 8
ALL_PERCENT: Final = 100.0
_ROUNDING: Final = 1e-6

_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
_Given = Annotated[str, Field(min_length=1, max_length=200)]


class _Variant(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: _Name
    share: float = Field(ge=0, le=ALL_PERCENT, allow_inf_nan=False)
    model: _Given | None = None
    prompt: _Given | None = None
    temperature: float | None = Field(None, ge=0, le=2, allow_inf_nan=False)


class _Conditions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    modes: list[Mode] = Field(default_factory=list)
    models: list[Annotated[str, Field(max_length=200)]] = Field(default_factory=list)
    prompt: _Given | None = None
    tenants: list[_Given] = Field(default_factory=list)


class _Experiment(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: _Name
    applies_to: _Conditions = Field(default_factory=_Conditions)
    variants: list[_Variant] = Field(min_length=2, max_length=MAX_VARIANTS)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    experiments: list[_Experiment] = Field(min_length=1, max_length=MAX_EXPERIMENTS)


def read_experiments(path: Path | None, templates: Sequence[ConfiguredTemplate]) -> tuple[Experiment, ...]:
    """Return the experiments of a file, empty without a file; raises InvalidRequest that names the error and its place.

    The experiments' prompts must be among the templates. Models are not checked: only the inference service knows them.
    """
    if path is None:
        return ()
    where = f"{EXPERIMENTS_FILE} {str(path)!r}"
    experiments = tuple(map(_experiment, read_json_file(path, _File, EXPERIMENTS_FILE).experiments))
    _check_names([one.name for one in experiments], f"{where}: experiments")
    known = {template.name: template for template in templates}
    for experiment in experiments:
        place = f"{where}: experiment {experiment.name!r}"
        _check_names([one.name for one in experiment.variants], f"{place}: variants")
        if problem := next(_problems_of(experiment, known), ""):
            raise InvalidRequest(f"{place}: {problem}")
    return experiments


def _problems_of(experiment: Experiment, known: Mapping[str, ConfiguredTemplate]) -> Iterator[str]:
    yield from _problems_of_shares([variant.share for variant in experiment.variants])
    prompts = [variant.prompt for variant in experiment.variants if variant.prompt]
    if prompts and not experiment.prompt:
        yield "a variant has a prompt: name the prompt that it replaces in applies_to.prompt"
    for name in filter(None, [experiment.prompt, *prompts]):
        if name not in known:
            yield f"no prompt template is named {name!r}: there is {', '.join(sorted(known)) or 'none'}"
    yield from _differences_of(prompts, experiment.prompt, known)


def _problems_of_shares(shares: Sequence[float]) -> Iterator[str]:
    if abs(sum(shares) - ALL_PERCENT) > _ROUNDING:
        yield f"its shares are {sum(shares):g} in all: make them 100"


def _differences_of(prompts: Sequence[str], replaced: str, known: Mapping[str, ConfiguredTemplate]) -> Iterator[str]:
    """Yield an error for each prompt that does not take the variables of the prompt it replaces."""
    for name in prompts:
        wanted, given = known[name].variables, known[replaced].variables
        if set(wanted) != set(given):
            yield f"prompt {name!r} has the variables {list(wanted)}, and {replaced!r} has {list(given)}"


def _check_names(names: list[str], where: str) -> None:
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidRequest(f"{where}: two have the name {twice!r}: give each a name of its own")


def _experiment(written: _Experiment) -> Experiment:
    conditions = written.applies_to
    return Experiment(
        name=written.name,
        variants=tuple(
            Variant(one.name, one.share, one.model or "", one.prompt or "", one.temperature) for one in written.variants
        ),
        modes=frozenset(conditions.modes),
        models=frozenset(conditions.models),
        prompt=conditions.prompt or "",
        tenants=frozenset(conditions.tenants),
    )
