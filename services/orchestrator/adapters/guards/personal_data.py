"""Finds personal data that has a fixed form, using the presidio recognizers that need no language model.

Options: `entities`, names of presidio's entities; `regions`, the regions (such as US) of phone numbers without a
country code; `threshold`, the lowest score of a finding. Names of people and places have no fixed form, so the guard
does not find them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pagantic_common.guards.plugin import Finding, GuardTraits
from services.orchestrator.adapters.guards.options import check_names, read_number, read_texts

if TYPE_CHECKING:
    from presidio_analyzer import EntityRecognizer

WINDOW: Final = 128
DEFAULT_ENTITIES: Final = (
    "CREDIT_CARD",
    "CRYPTO",
    "EMAIL_ADDRESS",
    "IBAN_CODE",
    "IP_ADDRESS",
    "MAC_ADDRESS",
    "PHONE_NUMBER",
    "US_SSN",
)
DEFAULT_REGIONS: Final = ("US", "GB", "DE", "FR", "IT", "ES", "IN")


class PersonalDataGuard:
    """Finds personal data."""

    traits = GuardTraits(window=WINDOW)

    def __init__(self, recognizers: Sequence[EntityRecognizer], entities: Sequence[str], threshold: float) -> None:
        self._recognizers = recognizers
        self._entities = list(entities)
        self._threshold = threshold

    def find(self, text: str, start: int) -> list[Finding]:  # noqa: ARG002 - the position does not matter
        """Return the personal data in a text."""
        return [
            Finding(hit.start, hit.end, hit.entity_type)
            for recognizer in self._recognizers
            for hit in recognizer.analyze(text, self._entities, None) or ()  # type: ignore[arg-type]  # patterns need none
            if hit.score >= self._threshold and hit.entity_type in self._entities
        ]


def make_guard(options: Mapping[str, Any]) -> PersonalDataGuard:
    """Make the guard. Raises ValueError if presidio is not installed or an entity is unknown."""
    check_names(options, "entities", "regions", "threshold")
    entities = tuple(read_texts(options, "entities") or DEFAULT_ENTITIES)
    regions = tuple(read_texts(options, "regions") or DEFAULT_REGIONS)
    threshold = read_number(options, "threshold", 0.4, most=1.0)
    recognizers = _known(regions)
    if unknown := next((name for name in entities if name not in recognizers), None):
        raise ValueError(f"option 'entities' has {unknown!r}: those with a form are {', '.join(sorted(recognizers))}")
    used = {id(recognizer): recognizer for name in entities for recognizer in recognizers[name]}
    return PersonalDataGuard(list(used.values()), entities, threshold)


def _known(regions: Sequence[str]) -> dict[str, list[EntityRecognizer]]:
    """Return presidio's pattern recognizers by entity."""
    try:
        from presidio_analyzer import PatternRecognizer, predefined_recognizers  # noqa: PLC0415 - an extra
    except ImportError:
        raise ValueError("it needs presidio: install pagantic[personal-data]") from None
    recognizers: dict[str, list[EntityRecognizer]] = {}
    made: list[Any] = [predefined_recognizers.PhoneRecognizer(supported_regions=regions)]
    for name in predefined_recognizers.__all__:
        kind = getattr(predefined_recognizers, name)
        if isinstance(kind, type) and issubclass(kind, PatternRecognizer):
            made.append(_offline(kind)())
    for recognizer in made:
        for entity in recognizer.supported_entities:
            recognizers.setdefault(entity, []).append(recognizer)
    return recognizers


def _offline(kind: type[Any]) -> type[Any]:
    """Return a recognizer that uses the domain list in its package instead of downloading a newer list."""
    if "tldextract" not in kind.validate_result.__code__.co_names:
        return kind
    import tldextract  # noqa: PLC0415 - an extra

    extract = tldextract.TLDExtract(cache_dir=None, suffix_list_urls=())

    def validate_result(_self: Any, pattern_text: str) -> bool:
        return bool(extract(pattern_text).fqdn)

    return type(kind.__name__, (kind,), {"validate_result": validate_result})
