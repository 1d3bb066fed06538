"""Runs the stages in order on a finished output, and derives the guarantee.

1. A failed stage ends the pipeline. The later stages are skipped, and their reports say so.
2. ENFORCED requires a decoder constrained by the whole schema, an unchanged output and a passed schema stage.
3. An explicit schema that allows anything still requires JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pagantic_common.domain.errors import ErrorCode
from pagantic_common.domain.text.json_text import JsonTextError
from pagantic_common.domain.validation import Enforcement, Guarantee, Stage, StageOutcome, StageReport, Violation
from pagantic_common.grammar.json_schema import Schema
from pagantic_common.grammar.schema_validator import Validator
from services.constraint.core.grammars import derives
from services.constraint.core.model import Contract, RepairStrategy
from services.constraint.core.repair.enums import normalize_enums
from services.constraint.core.repair.json_repair import find_json_problem, is_json, repair_document
from services.constraint.core.reports import failed, failure_of_report, passed, repaired, skipped
from services.constraint.core.rules.compiled import CompiledRules
from services.constraint.core.schema import find_violations

MAX_REASONS = 100
MAX_ERROR_CHARS = 300
NO_INTENT = "the request has no semantic_intent"
_AFTER_FAILURE = "an earlier stage failed"
_NO_SCHEMA = "the contract has no schema"


@dataclass(frozen=True, slots=True)
class Checks:
    """The compiled parts of a request: rules, schema and the grammar's engine text. A missing part is empty.

    `find_misquotes` checks the quotes of an output that satisfies the schema.
    """

    rules: CompiledRules
    schema: Schema | None = None
    validator: Validator | None = None
    engine_text: str = ""
    find_misquotes: Callable[[str], Sequence[Violation]] = lambda _: ()


@dataclass(frozen=True, slots=True)
class StrategyFailure:
    """The failure of a repair strategy: the function's name, and the error's class and shortened message."""

    strategy: str
    kind: str
    message: str


class Pipeline:
    """Runs an output through the stages.

    Attributes:
        strategy_failures: The first failure of each failed repair strategy, by strategy name.
    """

    def __init__(
        self,
        output: str,
        contract: Contract,
        checks: Checks,
        *,
        is_decoder_enforced: bool,
        monotonic_s: Callable[[], float],
        repairs: Sequence[RepairStrategy] = (),
    ) -> None:
        self.output = output
        self.contract = contract
        self.checks = checks
        self.is_decoder_enforced = is_decoder_enforced
        self.monotonic_s = monotonic_s
        self.repairs = repairs
        self.is_changed = False
        self.strategy_failures: dict[str, StrategyFailure] = {}

    def run(self) -> Enforcement:
        """Run the stages on the output."""
        reports = tuple(self._run_stages())
        failures = [report for report in reports if report.outcome is StageOutcome.FAILED]
        structured = ""
        if self.checks.schema is not None and is_json(self.output):
            structured = self.output
        enforcement = Enforcement(not failures, self.output, structured, reports, self._guarantee(failures))
        if failures:
            return replace(enforcement, failure=failure_of_report(failures[0]))
        return enforcement

    def _run_stages(self) -> Iterator[StageReport]:
        steps: dict[Stage, Callable[[], StageReport]] = {
            Stage.DECODER_CONSTRAINT: self._check_grammar,
            Stage.JSON_REPAIR: self._repair,
            Stage.ENUM_NORMALIZATION: self._normalize,
            Stage.SCHEMA_VALIDATION: self._validate,
            Stage.RULES: self._check_rules,
            Stage.SEMANTIC: partial(skipped, Stage.SEMANTIC, NO_INTENT),
        }
        has_failed = False
        for stage, step in steps.items():
            if has_failed:
                step = partial(skipped, stage, _AFTER_FAILURE)  # noqa: PLW2901 - the stage does not run
            start_s = self.monotonic_s()
            report = step()
            has_failed = has_failed or report.outcome is StageOutcome.FAILED
            yield replace(report, duration_s=self.monotonic_s() - start_s)

    def _guarantee(self, failures: Sequence[StageReport]) -> Guarantee:
        if self.checks.schema is None:
            return Guarantee.UNSPECIFIED
        if any(report.stage is not Stage.RULES for report in failures):
            return Guarantee.PARTIAL
        if self.is_changed:
            return Guarantee.REPAIRED
        if self.is_decoder_enforced and self.contract.decoder_constraint and not self.contract.has_grammar:
            return Guarantee.ENFORCED
        return Guarantee.VALIDATED

    def _check_grammar(self) -> StageReport:
        stage = Stage.DECODER_CONSTRAINT
        if not self.contract.decoder_constraint:
            return skipped(stage, "the contract does not constrain the decoder")
        if self.checks.engine_text:
            if derives(self.checks.engine_text, self.output):
                return passed(stage, "the grammar derives the output")
            text = "the grammar does not derive the output"
            return failed(stage, Violation(ErrorCode.CONSTRAINT_GRAMMAR_REJECTED, text))
        if self.checks.schema is None:
            return skipped(stage, "the contract has neither grammar nor schema")
        if self.is_decoder_enforced:
            return passed(stage, "the decoder enforced the schema; it is checked again below")
        return skipped(stage, "the output was not decoded under all of this schema: the stages below check it")

    def _repair(self) -> StageReport:
        stage = Stage.JSON_REPAIR
        if self.checks.schema is None:
            return skipped(stage, _NO_SCHEMA)
        if not self.contract.repair_allowed:
            return skipped(stage, "the contract does not allow repair")
        result = repair_document(self.output)
        if not result.valid:
            violation = _not_json(find_json_problem(self.output))
            if strategy := self._apply_strategy((violation,), is_json):
                return repaired(stage, strategy)
            return failed(stage, violation, reasons=("no repair makes JSON of the output",))
        if result.text == self.output:
            return passed(stage)
        self._change(result.text)
        return repaired(stage, *result.repairs[:MAX_REASONS])

    def _change(self, text: str) -> None:
        self.output = text
        self.is_changed = True

    def _apply_strategy(self, violations: Sequence[Violation], is_right: Callable[[str], bool]) -> str:
        """Try the registered strategies in order.

        Returns a reason that names the successful strategy, or an empty string if no strategy succeeds.
        """
        if not self.contract.repair_allowed:
            return ""
        for strategy in self.repairs:
            name = getattr(strategy, "__name__", "a strategy")
            try:
                text = strategy(self.output, violations)
            except Exception as error:  # noqa: BLE001 - a strategy may raise anything, and did not help
                self._note_failure(name, type(error).__name__, str(error))
                continue
            if not isinstance(text, str | None):
                self._note_failure(name, "TypeError", f"it returned {type(text).__name__}, not a text")
            elif text is not None and is_right(text):
                self._change(text)
                return f"repaired by {name}"
        return ""

    def _note_failure(self, strategy: str, kind: str, message: str) -> None:
        self.strategy_failures.setdefault(strategy, StrategyFailure(strategy, kind, message[:MAX_ERROR_CHARS]))

    def _normalize(self) -> StageReport:
        stage = Stage.ENUM_NORMALIZATION
        if self.checks.schema is None:
            return skipped(stage, _NO_SCHEMA)
        before = self._violations(self.output)
        if not before:
            return passed(stage)
        text, changed = normalize_enums(self.output, self.checks.schema)
        # The applicable branch of an anyOf is unknown, so a change is rejected if it adds a violation.
        if not changed or self._violations(text) - before:
            return passed(stage)
        self._change(text)
        reasons = [f'field "{path}" took its declared form' for path in changed[:MAX_REASONS]]
        if len(changed) > MAX_REASONS:
            reasons.append(f"and {len(changed) - MAX_REASONS} more")
        return repaired(stage, *reasons)

    def _violations(self, text: str) -> set[Violation]:
        if self.checks.validator is None:
            return set()
        try:
            return set(find_violations(text, self.checks.validator))
        except JsonTextError as error:
            return {_not_json(str(error))}

    def _satisfies_schema(self, text: str) -> bool:
        return not self._violations(text)

    def _validate(self) -> StageReport:
        stage = Stage.SCHEMA_VALIDATION
        if self.checks.validator is None:
            return skipped(stage, _NO_SCHEMA)
        try:
            violations: Sequence[Violation] = find_violations(self.output, self.checks.validator)
            violations = violations or self.checks.find_misquotes(self.output)
        except JsonTextError as error:
            return failed(stage, _not_json(str(error)))
        if violations:
            if strategy := self._apply_strategy(violations, self._satisfies_schema):
                return repaired(stage, strategy)
            return failed(stage, *violations)
        if self.checks.schema in ({}, True):
            return skipped(stage, "the schema allows anything")
        return passed(stage)

    def _check_rules(self) -> StageReport:
        if not self.checks.rules.checks:
            return skipped(Stage.RULES, "no rules were given")
        if violations := self.checks.rules.check(self.output):
            return failed(Stage.RULES, *violations)
        return passed(Stage.RULES)


def _not_json(problem: str) -> Violation:
    return Violation(ErrorCode.CONSTRAINT_JSON_INVALID, f"the output is not JSON: {problem}")
