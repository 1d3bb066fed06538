"""Chooses a request's variant of an experiment, and applies the variant's changes to the request.

A session's variant is drawn by weighted rendezvous hashing. A SHA-256 of the experiment, the variant and the session
gives each variant an exponentially distributed time whose rate is the variant's share. The variant with the earliest
time wins.

Invariants:
    1. The same session gets the same variant, in every orchestrator and after every restart.
    2. The probability of a variant is its share divided by the sum of all shares.
    3. If one share grows relative to the others, sessions move only to that variant; if it shrinks, only from it.
    4. The draws of different experiments are independent.

Source: Moulton, Jiang: Maximally Consistent Sampling and the Jaccard Index of Probability Distributions, 2018.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from services.orchestrator.core.model.request import ExperimentVariant, Mode, Request, VariantBase

_HASHES = 1 << 64
_Named = TypeVar("_Named")


@dataclass(frozen=True, slots=True)
class Variant:
    """A variant, its share in percent, and its replacements for settings of the request.

    An empty or None replacement changes nothing. `prompt` names a prompt template, which receives the variables of the
    request's template.
    """

    name: str
    share: float
    model: str = ""
    prompt: str = ""
    temperature: float | None = None


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment: its variants, and conditions on requests.

    A request takes part if it meets every condition. An empty condition holds for every request. An empty name in
    `models` matches requests that name no model. `prompt` is the name of a prompt template.
    """

    name: str
    variants: tuple[Variant, ...]
    modes: frozenset[Mode] = frozenset()
    models: frozenset[str] = frozenset()
    prompt: str = ""
    tenants: frozenset[str] = frozenset()

    def find_mismatch(self, request: Request) -> str:
        """Return the field that excludes a request, or an empty string if the experiment applies to it."""
        template = request.prompt.template
        matches = {
            "tenant": not self.tenants or request.tenant in self.tenants,
            "mode": not self.modes or request.mode in self.modes,
            "hints.model": not self.models or request.hints.model in self.models,
            "prompt.template": not self.prompt or (template is not None and template.name == self.prompt),
        }
        return next((field for field, is_met in matches.items() if not is_met), "")


@dataclass(frozen=True, slots=True)
class Experiments:
    """The experiments of a deployment, in order.

    `may_use` returns whether a tenant may use a model.
    """

    declared: tuple[Experiment, ...] = ()
    may_use: Callable[[str, str], bool] = lambda _tenant, _model: True

    def place(self, request: Request) -> Request:
        """Return a request with its variant: the named variant, or else a variant of the first applicable experiment.

        An experiment skips a tenant that may not use every variant's model, so that the groups stay comparable.
        A replay gets no new variant, because it may have the recorded variant. Raises InvalidRequest (CONFIG_INVALID)
        if the named variant does not exist or does not apply.
        """
        if request.variant is not None:
            return request
        if request.choice.named is not None:
            return with_variant(request, *self._named(request, request.choice.named))
        if request.replay is not None or not request.choice.takes_part:
            return request
        for experiment in self.declared:
            if not experiment.find_mismatch(request) and self._is_open_to(experiment, request.tenant):
                return with_variant(request, experiment, draw(experiment, unit_of(request)))
        return request

    def _is_open_to(self, experiment: Experiment, tenant: str) -> bool:
        return all(self.may_use(tenant, variant.model) for variant in experiment.variants if variant.model)

    def _named(self, request: Request, named: ExperimentVariant) -> tuple[Experiment, Variant]:
        visible = {item.name: item for item in self.declared if not item.tenants or request.tenant in item.tenants}
        experiment = _known("experiment", named.experiment, visible)
        variant = _known("variant", named.variant, {item.name: item for item in experiment.variants})
        if field := experiment.find_mismatch(request):
            raise InvalidRequest(
                f"variant.experiment {experiment.name!r} is not about this request: its {field} is another; leave "
                "variant unset, or send what the experiment is about",
                code=ErrorCode.CONFIG_INVALID,
            )
        return experiment, variant


def unit_of(request: Request) -> str:
    """Return the unit for which a variant is drawn.

    The unit is the tenant and the session, or the tenant and the request if the request has no session.
    """
    return f"{request.tenant}\0{request.session_id or request.request_id}"


def draw(experiment: Experiment, unit: str) -> Variant:
    """Return the variant drawn for a unit. A variant with a share of 0 is never drawn."""
    drawn = [variant for variant in experiment.variants if variant.share > 0]
    return min(drawn, key=lambda variant: _time_of(experiment, variant, unit))


def with_variant(request: Request, experiment: Experiment, variant: Variant) -> Request:
    """Return a request with the changes of its variant."""
    base = _base_of(request)
    temperature = base.temperature if variant.temperature is None else variant.temperature
    changed = VariantBase(variant.model or base.model, temperature, variant.prompt or base.template)
    return replace(_with(request, changed), variant=ExperimentVariant(experiment.name, variant.name), base=base)


def as_recorded(request: Request, recorded: Request) -> Request:
    """Return a replay's request with the recorded variant, except for settings that its caller changed.

    The recorded variant may no longer be configured. If the caller names another variant or opts out, the request is
    returned unchanged.
    """
    was, choice = recorded.base, request.choice
    if was is None or not choice.takes_part or choice.named not in (None, recorded.variant):
        return request
    requested_settings, recorded_settings = _base_of(request), _base_of(recorded)
    kept = VariantBase(
        recorded_settings.model if requested_settings.model == was.model else requested_settings.model,
        recorded_settings.temperature
        if requested_settings.temperature == was.temperature
        else requested_settings.temperature,
        recorded_settings.template if requested_settings.template == was.template else requested_settings.template,
    )
    return replace(_with(request, kept), variant=recorded.variant, base=was)


def _base_of(request: Request) -> VariantBase:
    template = request.prompt.template
    return VariantBase(request.hints.model, request.hints.temperature, template.name if template is not None else "")


def _with(request: Request, base: VariantBase) -> Request:
    hints, prompt = replace(request.hints, model=base.model, temperature=base.temperature), request.prompt
    if prompt.template is not None:
        prompt = replace(prompt, template=replace(prompt.template, name=base.template))
    return replace(request, hints=hints, prompt=prompt)


def _time_of(experiment: Experiment, variant: Variant, unit: str) -> float:
    digest = hashlib.sha256(f"{experiment.name}\0{variant.name}\0{unit}".encode()).digest()
    uniform = (int.from_bytes(digest[:8], "big") + 1) / _HASHES  # Add 1, because the logarithm of 0 is undefined.
    return -math.log(uniform) / variant.share


def _known(kind: str, name: str, known: Mapping[str, _Named]) -> _Named:
    if name in known:
        return known[name]
    raise InvalidRequest(
        f"variant.{kind} {name[:64]!r} is not known: there is {', '.join(known) or 'none'}",
        code=ErrorCode.CONFIG_INVALID,
    )
