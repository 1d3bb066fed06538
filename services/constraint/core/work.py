"""Computations on callers' sources and outputs: pure functions that a worker process can run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pagantic_common.domain.errors import ErrorCode
from pagantic_common.domain.text.citations import CitationPolicy, find_problems
from pagantic_common.domain.text.json_text import parse_json
from pagantic_common.domain.validation import Enforcement, Violation
from services.constraint.core.compilation import Compiled, Source, compile_source
from services.constraint.core.grammars import GrammarReport, check_grammar
from services.constraint.core.model import Contract, Limits, RepairStrategy, Rule
from services.constraint.core.pipeline import Checks, Pipeline, StrategyFailure
from services.constraint.core.repair.enums import normalize_enums
from services.constraint.core.repair.json_repair import RepairResult, find_json_problem, repair_json
from services.constraint.core.rules.compiled import compile_rules
from services.constraint.core.schema import SchemaReport, check_document, open_schema, warnings_of


def find_misquotes(output: str, policy: CitationPolicy, sources: Sequence[str]) -> list[Violation]:
    """Return a violation for each claim that its source does not support.

    The output must satisfy the schema of the citations.
    """
    return [
        Violation(ErrorCode.CONSTRAINT_SCHEMA_INVALID, f'field "{path}": {problem}', path)
        for path, problem in find_problems(parse_json(output), sources, policy)
    ]


@dataclass(frozen=True, slots=True)
class EnforceJob:
    """An output and its contract.

    `engine_text` is the contract's compiled grammar, or an empty string if there is no grammar to check. `sources` are
    the texts to be quoted under a contract with citations.
    """

    output: str
    contract: Contract
    rules: tuple[Rule, ...] = ()
    engine_text: str = ""
    is_decoder_enforced: bool = False
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Enforced:
    """The pipeline's result for an output, and the repair strategies that failed."""

    enforcement: Enforcement
    strategy_failures: tuple[StrategyFailure, ...] = ()


@dataclass(frozen=True, slots=True)
class Work:
    """The computations under the configured limits and repairs. Each raises InvalidRequest for an invalid source."""

    limits: Limits
    repairs: tuple[RepairStrategy, ...] = ()

    def compile(self, source: Source) -> Compiled:
        """Compile a source."""
        return compile_source(source, self.limits)

    def enforce(self, job: EnforceJob, monotonic_s: Callable[[], float] = lambda: 0.0) -> Enforced:
        """Run stages 1 to 5. The default clock makes all durations 0."""
        checks = Checks(compile_rules(job.rules), engine_text=job.engine_text)
        warnings: tuple[str, ...] = ()
        if schema_json := job.contract.effective_schema_json:
            schema, validator = open_schema(schema_json, self.limits)
            checks = replace(checks, schema=schema, validator=validator)
            warnings = warnings_of(schema)
        if (policy := job.contract.citations) is not None:
            checks = replace(checks, find_misquotes=partial(find_misquotes, policy=policy, sources=job.sources))
        pipeline = Pipeline(
            job.output,
            job.contract,
            checks,
            is_decoder_enforced=job.is_decoder_enforced,
            monotonic_s=monotonic_s,
            repairs=self.repairs,
        )
        enforcement = replace(pipeline.run(), warnings=warnings)
        return Enforced(enforcement, tuple(pipeline.strategy_failures.values()))

    def check_grammar(self, grammar: str, text: str | None) -> GrammarReport:
        """Parse and compile a grammar, and match the text, if any, against it."""
        return check_grammar(grammar, text, self.limits)

    def check_json(self, text: str) -> str:
        """Return the reason why the text is not JSON, or an empty string if it is JSON."""
        return find_json_problem(text)

    def repair_json(self, text: str) -> RepairResult:
        """Repair the text so that it becomes valid JSON."""
        return repair_json(text)

    def normalize_enums(self, document: str, schema_json: str) -> tuple[str, tuple[str, ...]]:
        """Rewrite enum values in their declared form. Returns the document and the changed paths."""
        schema, _ = open_schema(schema_json, self.limits)
        return normalize_enums(document, schema)

    def check_schema(self, document: str, schema_json: str, ignore_formats: bool = False) -> SchemaReport:
        """Check a document against a schema."""
        return check_document(document, schema_json, self.limits, ignore_formats=ignore_formats)

    def compile_rules(self, rules: tuple[Rule, ...], schema_json: str) -> None:
        """Check rules and, if a schema is given, the fields that they read."""
        schema = None
        if schema_json:
            schema, _ = open_schema(schema_json, self.limits)
        compile_rules(rules, schema)

    def check_rules(self, output: str, rules: tuple[Rule, ...]) -> list[Violation]:
        """Return a violation for each rule that the output fails."""
        return compile_rules(rules).check(output)
