"""What is computed on sources and outputs of callers: functions of values, so that another process can run them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.json_text import JsonTextError, parse_json
from pagantic_common.domain.validation import Enforcement, Violation
from pagantic_common.grammar.gbnf import parse_gbnf
from pagantic_common.grammar.problems import GrammarError, Problem
from services.constraint.core import json_repair
from services.constraint.core.compilation import Compiled, Source, SourceKind, compile_source
from services.constraint.core.enums import normalize_enums
from services.constraint.core.grammar_match import derives
from services.constraint.core.model import Contract, Limits, RepairStrategy, Rule
from services.constraint.core.pipeline import Pipeline
from services.constraint.core.rules import compile_rules
from services.constraint.core.schema import find_violations, open_schema, warnings_of

MAX_PROBLEMS = 100  # listed for one grammar


@dataclass(frozen=True, slots=True)
class GrammarReport:
    """What was found of a grammar; `text_matches` is None when no text was given or the grammar is wrong."""

    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()
    text_matches: bool | None = None


@dataclass(frozen=True, slots=True)
class SchemaReport:
    """What of a document does not satisfy its schema, and what is to be known of the schema."""

    violations: tuple[Violation, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EnforceJob:
    """An output and what it must be; `engine_text` is of the contract's grammar, empty when none is to be checked."""

    output: str
    contract: Contract
    rules: tuple[Rule, ...] = ()
    engine_text: str = ""
    is_decoder_enforced: bool = False


def _listed(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Return the first problems, and how many more there are."""
    left = len(problems) - MAX_PROBLEMS
    more = (Problem(f"{left} more are not listed"),) if left > 0 else ()
    return (*problems[:MAX_PROBLEMS], *more)


@dataclass(frozen=True, slots=True)
class Work:
    """The functions, with the limits and repairs of this service; each raises InvalidRequest for a wrong source."""

    limits: Limits
    repairs: tuple[RepairStrategy, ...] = ()

    def compile(self, source: Source) -> Compiled:
        """Compile a source."""
        return compile_source(source, self.limits)

    def enforce(self, job: EnforceJob, monotonic_s: Callable[[], float] = lambda: 0.0) -> Enforcement:
        """Run stages 1 to 5; without a clock they take no time."""
        schema_json = job.contract.schema_json
        schema, validator = open_schema(schema_json, self.limits) if schema_json else (None, None)
        found = Pipeline(
            job.output,
            job.contract,
            decoder_enforced=job.is_decoder_enforced,
            validator=validator,
            schema=schema,
            rules=compile_rules(job.rules),
            matches_grammar=(lambda text: derives(job.engine_text, text)) if job.engine_text else None,
            monotonic_s=monotonic_s,
            repairs=self.repairs,
        ).run()
        return found if schema is None else replace(found, warnings=warnings_of(schema))

    def check_grammar(self, grammar: str, text: str | None) -> GrammarReport:
        """Parse and compile a grammar, and match the text."""
        try:
            warnings = _listed(parse_gbnf(grammar).warnings)
        except GrammarError as error:
            return GrammarReport(problems=error.problems)
        try:
            compiled = compile_source(Source(SourceKind.GRAMMAR, grammar), self.limits)
        except InvalidRequest as error:
            if error.code is ErrorCode.CONSTRAINT_TOO_COMPLEX:
                raise
            return GrammarReport(problems=(Problem(str(error)),), warnings=warnings)
        matches = None if text is None else derives(compiled.engine_text, text)
        return GrammarReport(warnings=warnings, text_matches=matches)

    def check_json(self, text: str) -> str:
        """Return why the text is not JSON; empty when it is."""
        try:
            parse_json(text)
        except JsonTextError as error:
            return str(error)
        return ""

    def repair_json(self, text: str) -> json_repair.RepairResult:
        """Make JSON of the text."""
        return json_repair.repair_json(text)

    def normalize_enums(self, document: str, schema_json: str) -> tuple[str, tuple[str, ...]]:
        """Give enum values their declared form; returns the document and the changed paths."""
        schema, _ = open_schema(schema_json, self.limits)
        return normalize_enums(document, schema)

    def check_schema(self, document: str, schema_json: str, ignore_formats: bool = False) -> SchemaReport:
        """Return what of the document does not satisfy the schema."""
        schema, validator = open_schema(schema_json, self.limits, ignore_formats)
        try:
            violations = find_violations(document, validator)
        except JsonTextError as error:
            violations = [Violation(ErrorCode.CONSTRAINT_JSON_INVALID, f"the document is not JSON: {error}")]
        return SchemaReport(tuple(violations), warnings_of(schema))

    def compile_rules(self, rules: tuple[Rule, ...], schema_json: str) -> None:
        """Check the rules, and that they read no field which the schema forbids."""
        schema = open_schema(schema_json, self.limits)[0] if schema_json else None
        compile_rules(rules, schema)

    def check_rules(self, output: str, rules: tuple[Rule, ...]) -> list[Violation]:
        """Return the rules that do not hold."""
        return compile_rules(rules).check(output)
