"""Reads the operator's files and packages at startup: prompts, calibrations, experiments and custom steps.

In folders, hidden files and files with unexpected suffixes are ignored.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.ids import is_id
from pagantic_common.domain.text.calibration import MAX_SCALING, Calibration, LabelCalibration
from pagantic_common.domain.text.isotonic import Curve
from pagantic_common.storage.json_file import read_json_file
from services.orchestrator.core.admission.experiments import Experiment, Variant
from services.orchestrator.core.conversation.prompt_template import PromptTemplate, PromptTemplateError
from services.orchestrator.core.model.plan import StepKind
from services.orchestrator.core.model.request import Mode, Request, TemplateCall
from services.orchestrator.ports.services import ConfiguredTemplate, CustomStep

PROMPT_SUFFIXES = (".md", ".txt")
CALIBRATION_SUFFIX = ".json"
CALIBRATIONS = "the calibration"


Scaling = Annotated[float, Field(ge=-MAX_SCALING, le=MAX_SCALING, allow_inf_nan=False)]
EXPERIMENTS_FILE: Final = "EXPERIMENTS_FILE"
MAX_EXPERIMENTS: Final = 16  # Limited, because the names of experiments are metric labels.
MAX_VARIANTS: Final = 8
ALL_PERCENT: Final = 100.0
_ROUNDING: Final = 1e-6

_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
_Given = Annotated[str, Field(min_length=1, max_length=200)]


class PromptFolder:
    """The templates in a folder. Raises InvalidRequest with the name of the folder or file if either is unusable.

    Only `.md` and `.txt` files that are not hidden are read.
    """

    def __init__(self, folder: Path | None) -> None:
        self._templates: dict[str, PromptTemplate] = {}
        if folder is None:
            return
        try:
            paths = sorted(folder.iterdir())
        except OSError as error:
            raise InvalidRequest(f"the prompt folder {str(folder)!r} cannot be read: {error.strerror}") from None
        for path in paths:
            if path.suffix in PROMPT_SUFFIXES and not path.name.startswith(".") and path.is_file():
                self._add(path)

    async def system_prompt(self, request: Request, session: Mapping[str, str]) -> str:
        """Return the request's own prompt, or the rendered template that the request names."""
        if request.prompt.template is None:
            return request.prompt.render()
        return self.render(request.prompt.template, session)

    def templates(self) -> tuple[ConfiguredTemplate, ...]:
        """Return the templates, sorted by name."""
        return tuple(
            ConfiguredTemplate(name, tuple(sorted(template.names)), tuple(sorted(template.session_keys)))
            for name, template in sorted(self._templates.items())
        )

    def render(self, template: TemplateCall, session: Mapping[str, str]) -> str:
        """Return the text of a template. Raises InvalidRequest (CONFIG_INVALID) if it cannot be rendered."""
        prompt_template = self._templates.get(template.name)
        if prompt_template is None:
            names = ", ".join(sorted(self._templates)) or "none"
            raise InvalidRequest(
                f"prompt.template: no template is named {template.name!r}; configured: {names}",
                code=ErrorCode.CONFIG_INVALID,
            )
        try:
            return prompt_template.render(dict(template.variables), session)
        except PromptTemplateError as error:
            raise InvalidRequest(f"prompt.template {template.name!r}: {error}", code=ErrorCode.CONFIG_INVALID) from None

    def _add(self, path: Path) -> None:
        problem = ""
        if not is_id(path.stem):
            problem = "its name does not match [A-Za-z0-9._:-]{1,128}"
        elif path.stem in self._templates:
            problem = f"another file gives the template {path.stem!r} too"
        else:
            try:
                self._templates[path.stem] = PromptTemplate(path.read_text(encoding="utf-8-sig"))
            except (OSError, UnicodeDecodeError, PromptTemplateError) as error:
                problem = str(error)
        if problem:
            raise InvalidRequest(f"the prompt template {path.name!r} cannot be used: {problem}")


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


class _ExperimentsFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    experiments: list[_Experiment] = Field(min_length=1, max_length=MAX_EXPERIMENTS)


def read_experiments(path: Path | None, templates: Sequence[ConfiguredTemplate]) -> tuple[Experiment, ...]:
    """Return the experiments in a file, or no experiments if no path is given.

    The experiments' prompts must be among the templates. Models are not checked, because only the inference service
    knows them. Raises InvalidRequest with the error and its location.
    """
    if path is None:
        return ()
    where = f"{EXPERIMENTS_FILE} {str(path)!r}"
    experiments = tuple(map(_experiment, read_json_file(path, _ExperimentsFile, EXPERIMENTS_FILE).experiments))
    _check_names([item.name for item in experiments], f"{where}: experiments")
    templates_by_name = {template.name: template for template in templates}
    for experiment in experiments:
        place = f"{where}: experiment {experiment.name!r}"
        _check_names([item.name for item in experiment.variants], f"{place}: variants")
        if problem := next(_problems_of(experiment, templates_by_name), ""):
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
    """Yield an error for each prompt whose variables differ from the variables of the prompt that it replaces."""
    for name in prompts:
        variables, expected = known[name].variables, known[replaced].variables
        if set(variables) != set(expected):
            yield f"prompt {name!r} has the variables {list(variables)}, and {replaced!r} has {list(expected)}"


def _check_names(names: list[str], where: str) -> None:
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidRequest(f"{where}: two have the name {twice!r}: give each a name of its own")


def _experiment(written: _Experiment) -> Experiment:
    conditions = written.applies_to
    return Experiment(
        name=written.name,
        variants=tuple(
            Variant(variant.name, variant.share, variant.model or "", variant.prompt or "", variant.temperature)
            for variant in written.variants
        ),
        modes=frozenset(conditions.modes),
        models=frozenset(conditions.models),
        prompt=conditions.prompt or "",
        tenants=frozenset(conditions.tenants),
    )


class _Line(BaseModel):
    """A line that maps the model's log-odds to the log-odds of the probability."""

    model_config = ConfigDict(extra="forbid")

    slope: Scaling
    intercept: Scaling


def _kind_of(value: Any) -> str:
    return "curve" if isinstance(value, dict) and "log_odds" in value else "line"


class _CalibrationFile(BaseModel):
    """The content of a calibration file, in the form that `pagantic fit` writes."""

    model: str
    maps: dict[str, Annotated[Annotated[_Line, Tag("line")] | Annotated[Curve, Tag("curve")], Discriminator(_kind_of)]]

    def calibration(self) -> LabelCalibration:
        """Return the calibration that the file describes."""
        maps = {
            answer: Calibration(read.slope, read.intercept) if isinstance(read, _Line) else read
            for answer, read in self.maps.items()
        }
        return LabelCalibration(self.model, maps)


def read_calibrations(folder: Path | None) -> Mapping[str, LabelCalibration]:
    """Return the calibrations in a folder by name.

    Only `.json` files that are not hidden are read. Raises InvalidRequest with the name of the folder or file if either
    is unusable.
    """
    if folder is None:
        return {}
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        raise InvalidRequest(f"the calibration folder {str(folder)!r} cannot be read: {error.strerror}") from None
    files = [
        path for path in paths if path.suffix == CALIBRATION_SUFFIX and not path.name.startswith(".") and path.is_file()
    ]
    for path in files:
        if not is_id(path.stem):
            raise InvalidRequest(f"{CALIBRATIONS} {str(path)!r}: its name does not match [A-Za-z0-9._:-]{{1,128}}")
    return {path.stem: read_json_file(path, _CalibrationFile, CALIBRATIONS).calibration() for path in files}


def load_custom_steps(functions: Mapping[str, str]) -> dict[str, CustomStep]:
    """Import the function of each kind, given as `package.module:function`.

    Raises InvalidRequest (CONFIG_INVALID) if a function cannot be imported or is not a coroutine function, or if a kind
    has the name of a built-in kind.
    """
    return {kind: _load(kind, path) for kind, path in functions.items()}


def _load(kind: str, path: str) -> CustomStep:
    where = f"STEP_KINDS names {path!r} for kind {kind!r}"
    if kind in tuple(StepKind):
        raise InvalidRequest(f"{where}, which is a built-in kind: choose another name")
    module_name, _, function_name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except ModuleNotFoundError as error:
        raise InvalidRequest(
            f"{where}, which cannot be imported: {error}: install its package, or name its folder in PYTHONPATH; the "
            "current folder is not searched"
        ) from None
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidRequest(f"{where}, which cannot be imported: {error}") from None
    if not inspect.iscoroutinefunction(function):
        raise InvalidRequest(f"{where}, which is not a coroutine function: write `async def`")
    step: CustomStep = function
    return step
