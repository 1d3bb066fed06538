"""Finds API keys, tokens, passwords in URLs, and private keys.

It uses the patterns of detect-secrets and three additional patterns.

Options: `allow`, a list of texts that are not secrets, such as example keys.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
from detect_secrets.plugins.base import RegexBasedDetector
from detect_secrets.plugins.private_key import PrivateKeyDetector

from pagantic_common.guards.plugin import Finding, GuardTraits
from services.orchestrator.adapters.guards.options import check_names, read_texts

WINDOW: Final = 256
MIN_ENTROPY: Final = 2.8  # bits per character
_LEFT_OUT: Final = {"Public IP (ipv4)", "Artifactory Credentials", "Basic Auth Credentials"}  # mostly false positives
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_PRIVATE_KEY_END = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_ASSIGNED = re.compile(
    r"(?i)(?<![a-z0-9])[a-z0-9_.-]{0,40}(?:key|token|secret|passw(?:or)?d|pwd|pat)(?:[_-][a-z]{1,12})?"
    r"[\"']?\s{0,3}(?::|=>?)\s{0,3}[\"']?([a-z0-9+/=_.~!@#$%^&*?-]{16,200})"
)
_AUTHORIZATION = re.compile(r"(?i)(?<![a-z])(?:bearer|basic)\s+([a-z0-9+/=_.~-]{16,200})")
_GOOGLE = re.compile(r"(?<![A-Za-z0-9])(AIza[A-Za-z0-9_-]{35,40})(?![A-Za-z0-9])")
_ADDRESS = re.compile(r"[a-z][a-z0-9+]{1,20}://[^\s/:@]{0,60}:([^\s/]{3,80})@")
_PREFIXED = re.compile(
    r"(?<![A-Za-z0-9_.$-])(?!(?i:sha|md|uuid|v\d))[A-Za-z0-9]{1,12}(?:[_.$-][A-Za-z0-9]{1,12}){0,3}[_.$:-]{1,2}"
    r"([A-Za-z0-9]{20,200}(?:[-_=.][A-Za-z0-9]{1,80}){0,4}=?)(?![A-Za-z0-9+/])"
)
# Patterns whose value must look random. A TOKEN finding includes the prefix, which names the issuer.
_RANDOM: Final = {
    _ASSIGNED: "CREDENTIAL",
    _AUTHORIZATION: "AUTHORIZATION",
    _PREFIXED: "TOKEN",
    _GOOGLE: "GOOGLE_API_KEY",
}


class SecretsGuard:
    """Finds secrets in texts."""

    traits = GuardTraits(window=WINDOW)

    def __init__(self, allowed: Sequence[str]) -> None:
        self._allowed = allowed
        classes: Mapping[str, Any] = get_mapping_from_secret_type_to_class()
        self._detectors = [
            kind()
            for name, kind in classes.items()
            if issubclass(kind, RegexBasedDetector) and kind is not PrivateKeyDetector and name not in _LEFT_OUT
        ]

    def find(self, text: str, start: int) -> list[Finding]:  # noqa: ARG002 - the position does not matter
        """Return the secrets in a text."""
        findings = [*self._known(text), *_private_keys(text), *_others(text)]
        return [
            finding
            for finding in findings
            if not any(part in text[finding.start : finding.end] for part in self._allowed)
        ]

    def _known(self, text: str) -> Iterator[Finding]:
        for detector in self._detectors:
            for secret in set(detector.analyze_string(text)):
                for match in re.finditer(re.escape(secret), text) if secret else ():
                    yield Finding(match.start(), match.end(), _kind(detector.secret_type))


def make_guard(options: Mapping[str, Any]) -> SecretsGuard:
    """Make the guard."""
    check_names(options, "allow")
    return SecretsGuard(read_texts(options, "allow"))


def _private_keys(text: str) -> Iterator[Finding]:
    """Yield each private key up to its last line, or up to the end of the text if that line is missing."""
    for begin in _PRIVATE_KEY.finditer(text):
        end = _PRIVATE_KEY_END.search(text, begin.end())
        yield Finding(begin.start(), end.end() if end else len(text), "PRIVATE_KEY")


def _others(text: str) -> Iterator[Finding]:
    for pattern, kind in _RANDOM.items():
        for match in pattern.finditer(text):
            if _is_random(match[1], needs_digit=kind != "TOKEN"):
                yield Finding(match.start(0 if kind == "TOKEN" else 1), match.end(1), kind)
    for match in _ADDRESS.finditer(text):
        yield Finding(match.start(1), match.end(1), "PASSWORD")


def _is_random(value: str, *, needs_digit: bool) -> bool:
    """Return whether a value looks random, that is, mixes kinds of characters and has enough entropy."""
    has_digit, has_upper, has_lower = (any(map(is_one, value)) for is_one in (str.isdigit, str.isupper, str.islower))
    if not has_lower and not has_upper:
        return False
    if not has_digit and (needs_digit or not (has_lower and has_upper)):
        return False
    counts = Counter(value)
    entropy = -sum(count / len(value) * math.log2(count / len(value)) for count in counts.values())
    return entropy >= MIN_ENTROPY


def _kind(name: str) -> str:
    return re.sub(r"[^A-Z0-9]+", "_", name.upper()).strip("_")
