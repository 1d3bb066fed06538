"""The stages on a finished output, in order, and what they guarantee together.

1. A stage that fails ends the pipeline: the later ones are skipped and say so.
2. ENFORCED needs a decoder that was constrained by all of the schema, an unchanged output and a passed schema stage.
3. An explicit schema that allows anything still asks for JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pagantic_common.domain.errors import ErrorCode, Failure, failure_of
from pagantic_common.domain.json_text import JsonTextError, parse_json
from pagantic_common.domain.validation import Enforcement, Guarantee, Stage, StageOutcome, StageReport, Violation
from pagantic_common.grammar.schema_validator import Validator
from services.constraint.core.enums import normalize_enums
from services.constraint.core.json_repair import is_json, repair_json
from services.constraint.core.judgement import PROMPT_VERSION, Verdict
from services.constraint.core.model import Contract, RepairStrategy
from services.constraint.core.paths import printable
from services.constraint.core.repeated_keys import without_repeated_keys
from services.constraint.core.rules import CompiledRules
from services.constraint.core.schema import find_violations

MAX_DETAILED_VIOLATIONS = 50
MAX_REASONS = 100
NO_INTENT = "the request has no semantic_intent"
_AFTER_FAILURE = "an earlier stage failed"
_NO_SCHEMA = "the contract has no schema"


class Pipeline:
    """One output's way through the stages."""

    def __init__(
        self,
        output: str,
        contract: Contract,
        *,
        decoder_enforced: bool,
        validator: Validator | None,
        schema: dict[str, object] | bool | None,
        rules: CompiledRules,
        matches_grammar: Callable[[str], bool] | None,
        monotonic_s: Callable[[], float],
        repairs: Sequence[RepairStrategy] = (),
    ) -> None:
        self.output = output
        self.contract = contract
        self.decoder_enforced = decoder_enforced
        self.validator = validator
        self.schema = schema
        self.rules = rules
        self.matches_grammar = matches_grammar
        self.monotonic_s = monotonic_s
        self.repairs = repairs if contract.repair_allowed else ()
        self.is_changed = False

    def run(self) -> Enforcement:
        """Run the stages on the output."""
        steps: dict[Stage, Callable[[], StageReport]] = {
            Stage.DECODER_CONSTRAINT: self._check_grammar,
            Stage.JSON_REPAIR: self._repair,
            Stage.ENUM_NORMALIZATION: self._normalize,
            Stage.SCHEMA_VALIDATION: self._validate,
            Stage.RULES: self._check_rules,
            Stage.SEMANTIC: lambda: _skip(Stage.SEMANTIC, NO_INTENT),
        }
        reports: list[StageReport] = []
        failed: StageReport | None = None
        for stage, step in steps.items():
            start = self.monotonic_s()
            report = _skip(stage, _AFTER_FAILURE) if failed else step()
            if report.outcome is StageOutcome.FAILED:
                failed = report
            reports.append(replace(report, duration_s=self.monotonic_s() - start))
        structured = self.output if self.schema is not None and is_json(self.output) else ""
        guarantee = self._guarantee(failed)
        failure = _failure_of(failed) if failed else None
        return Enforcement(failed is None, self.output, structured, tuple(reports), guarantee, failure)

    def _guarantee(self, failed: StageReport | None) -> Guarantee:
        if self.schema is None:
            return Guarantee.UNSPECIFIED
        if failed is not None and failed.stage is not Stage.RULES:
            return Guarantee.PARTIAL
        if self.is_changed:
            return Guarantee.REPAIRED
        is_by_grammar = self.contract.grammar is not None or self.contract.grammar_name is not None
        is_enforced = self.decoder_enforced and self.contract.decoder_constraint and not is_by_grammar
        return Guarantee.ENFORCED if is_enforced else Guarantee.VALIDATED

    def _check_grammar(self) -> StageReport:
        stage = Stage.DECODER_CONSTRAINT
        if not self.contract.decoder_constraint:
            return _skip(stage, "the contract does not constrain the decoder")
        if self.matches_grammar is not None:
            if self.matches_grammar(self.output):
                return StageReport(stage, StageOutcome.PASSED, ("the grammar derives the output",))
            text = "the grammar does not derive the output"
            return _fail(stage, Violation(ErrorCode.CONSTRAINT_GRAMMAR_REJECTED, text))
        if self.schema is None:
            return _skip(stage, "the contract has neither grammar nor schema")
        if self.decoder_enforced:
            return StageReport(
                stage, StageOutcome.PASSED, ("the decoder enforced the schema; it is checked again below",)
            )
        return _skip(stage, "the output was not decoded under all of this schema: the stages below check it")

    def _repair(self) -> StageReport:
        stage = Stage.JSON_REPAIR
        if self.schema is None:
            return _skip(stage, _NO_SCHEMA)
        if not self.contract.repair_allowed:
            return _skip(stage, "the contract does not allow repair")
        result = repair_json(self.output)
        if not result.valid:
            violation = _not_json(self.output)
            mended = self._mend((violation,), lambda text: not is_json(text))
            return mended or _fail(stage, violation, "no repair makes JSON of the output")
        text, keys = without_repeated_keys(result.text)
        if result.level == 0 and not keys:
            return StageReport(stage, StageOutcome.PASSED)
        self.output, self.is_changed = text, True
        repeated = [f'the key "{printable(key)}" was written more than once: the last value counts' for key in keys]
        return StageReport(stage, StageOutcome.REPAIRED, (*result.repairs, *repeated)[:MAX_REASONS])

    def _mend(self, violations: Sequence[Violation], is_wrong: Callable[[str], bool]) -> StageReport | None:
        """Let the registered strategies try, in order; None when what each gives is wrong still."""
        for strategy in self.repairs:
            name = getattr(strategy, "__name__", "a strategy")
            try:
                text = strategy(self.output, violations)
            except Exception:  # noqa: BLE001, S112 - one that fails did not help
                continue
            if isinstance(text, str) and not is_wrong(text):
                self.output, self.is_changed = text, True
                return StageReport(Stage.JSON_REPAIR, StageOutcome.REPAIRED, (f"repaired by {name}",))
        return None

    def _normalize(self) -> StageReport:
        stage = Stage.ENUM_NORMALIZATION
        if self.schema is None:
            return _skip(stage, _NO_SCHEMA)
        before = self._violations(self.output)
        if not before:
            return StageReport(stage, StageOutcome.PASSED)
        text, changed = normalize_enums(self.output, self.schema)
        # Which branch of an anyOf applies is not known: a change is accepted only if it adds no violation.
        if not changed or self._violations(text) - before:
            return StageReport(stage, StageOutcome.PASSED)
        self.output, self.is_changed = text, True
        reasons = [f'field "{path}" took its declared form' for path in changed[:MAX_REASONS]]
        if len(changed) > MAX_REASONS:
            reasons.append(f"and {len(changed) - MAX_REASONS} more")
        return StageReport(stage, StageOutcome.REPAIRED, tuple(reasons))

    def _violations(self, text: str) -> set[Violation]:
        try:
            return set(find_violations(text, self.validator)) if self.validator is not None else set()
        except JsonTextError as error:
            return {Violation(ErrorCode.CONSTRAINT_JSON_INVALID, str(error))}

    def _validate(self) -> StageReport:
        stage = Stage.SCHEMA_VALIDATION
        if self.schema is None or self.validator is None:
            return _skip(stage, _NO_SCHEMA)
        validator = self.validator
        try:
            violations = find_violations(self.output, validator)
        except JsonTextError as error:
            return _fail(stage, Violation(ErrorCode.CONSTRAINT_JSON_INVALID, f"the output is not JSON: {error}"))
        if violations:
            mended = self._mend(violations, lambda text: bool(self._violations(text)))
            failed = StageReport(stage, StageOutcome.FAILED, (), tuple(violations))
            return replace(mended, stage=stage) if mended else failed
        if self.schema in ({}, True):
            return _skip(stage, "the schema allows anything")
        return StageReport(stage, StageOutcome.PASSED)

    def _check_rules(self) -> StageReport:
        if not self.rules.checks:
            return _skip(Stage.RULES, "no rules were given")
        violations = self.rules.check(self.output)
        outcome = StageOutcome.FAILED if violations else StageOutcome.PASSED
        return StageReport(Stage.RULES, outcome, (), tuple(violations))


def with_verdict(found: Enforcement, verdict: Verdict, duration_s: float) -> Enforcement:
    """Return what the pipeline found of a valid output with the judge's verdict as its last stage."""
    outcome = StageOutcome.PASSED if verdict.valid else StageOutcome.FAILED
    said = f"{verdict.reason} (confidence {verdict.confidence:g}, judge prompt {PROMPT_VERSION})"
    violations = (Violation(ErrorCode.VALIDATION_SEMANTIC_FAILED, f"the output does not meet its intent: {said}"),)
    report = StageReport(
        Stage.SEMANTIC, outcome, (said,) if verdict.valid else (), () if verdict.valid else violations, duration_s
    )
    return replace(
        found,
        valid=verdict.valid,
        stages=(*found.stages[:-1], report),
        failure=None if verdict.valid else _failure_of(report),
        semantic_score=verdict.score,
        judge_usage=verdict.usage,
    )


def _skip(stage: Stage, reason: str) -> StageReport:
    return StageReport(stage, StageOutcome.SKIPPED, (reason,))


def _fail(stage: Stage, violation: Violation, *reasons: str) -> StageReport:
    return StageReport(stage, StageOutcome.FAILED, reasons, (violation,))


def _not_json(text: str) -> Violation:
    try:
        parse_json(text)
    except JsonTextError as error:
        return Violation(ErrorCode.CONSTRAINT_JSON_INVALID, f"the output is not JSON: {error}")
    return Violation(ErrorCode.CONSTRAINT_JSON_INVALID, "the output is not JSON")


def _failure_of(report: StageReport) -> Failure:
    """Return the failure that stands for the stage; violations of several codes are one of the schema."""
    codes = {violation.code for violation in report.violations}
    code = (codes.pop() if len(codes) == 1 else None) or ErrorCode.CONSTRAINT_SCHEMA_INVALID
    listed = [{"path": found.path, "message": found.message} for found in report.violations[:MAX_DETAILED_VIOLATIONS]]
    count = len(report.violations)
    more = f" (and {count - 1} more)" if count > 1 else ""
    return failure_of(
        code, report.violations[0].message + more, details={"violations": listed, "violation_count": count}
    )
