"""The use-cases: each bounds its input and does its work off the event loop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import ErrorCode, InvalidRequest, Unsupported
from pagantic_common.domain.json_text import JsonTextError, parse_json
from pagantic_common.domain.validation import Enforcement, Violation
from pagantic_common.grammar.gbnf import parse_gbnf
from pagantic_common.grammar.problems import GrammarError, Problem
from services.constraint.app.compile_cache import CompileCache
from services.constraint.core.compilation import Compiled, Source, SourceKind
from services.constraint.core.enums import normalize_enums
from services.constraint.core.json_repair import RepairResult, repair_json
from services.constraint.core.model import Contract, Limits, Rule
from services.constraint.core.pipeline import Pipeline
from services.constraint.core.rules import compile_rules
from services.constraint.core.schema import bound_source, build_validator, find_violations, parse_schema
from services.constraint.ports import GrammarMatcher, NamedGrammars


@dataclass(frozen=True, slots=True)
class GrammarReport:
    """What was found of a grammar; `text_matches` is None when no text was given or the grammar is wrong."""

    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()
    text_matches: bool | None = None


class Constraints:
    """Everything that the service does."""

    def __init__(
        self, limits: Limits, cache: CompileCache, grammars: NamedGrammars, matcher: GrammarMatcher, clock: Clock
    ) -> None:
        self._limits = limits
        self._cache = cache
        self._grammars = grammars
        self._matcher = matcher
        self._clock = clock

    async def compile(self, source: Source) -> tuple[Compiled, bool]:
        """Compile a source; the flag says whether it was in the cache."""
        return await self._cache.compile(source)

    async def compile_named(self, name: str) -> tuple[Compiled, bool]:
        """Compile a configured grammar."""
        return await self._cache.compile(Source(SourceKind.GRAMMAR, self._grammars.read(name)))

    async def enforce(
        self, output: str, contract: Contract, rules: tuple[Rule, ...], intent: str, *, decoder_enforced: bool
    ) -> Enforcement:
        """Run the stages that the contract declares; bad output is a value."""
        if intent:
            raise semantics_unsupported()
        self._bound_output(output)
        grammar = contract.grammar
        if contract.grammar_name is not None:
            grammar = self._grammars.read(contract.grammar_name)
        engine_text = ""
        if grammar is not None and contract.decoder_constraint:
            engine_text = (await self._cache.compile(Source(SourceKind.GRAMMAR, grammar)))[0].engine_text

        def work() -> Enforcement:
            schema = parse_schema(contract.schema_json, self._limits) if contract.schema_json else None
            return Pipeline(
                output,
                contract,
                decoder_enforced=decoder_enforced,
                validator=None if schema is None else build_validator(schema),
                schema=schema,
                rules=compile_rules(rules),
                matches_grammar=(lambda text: self._matcher.matches(engine_text, text)) if engine_text else None,
                monotonic_s=self._clock.monotonic_s,
            ).run()

        return await asyncio.to_thread(work)

    async def check_grammar(self, grammar: str, text: str | None) -> GrammarReport:
        """Parse and compile a grammar, and match the text."""
        bound_source(grammar, self._limits, "grammar")
        self._bound_output(text or "")
        try:
            warnings = (await asyncio.to_thread(parse_gbnf, grammar)).warnings
        except GrammarError as error:
            return GrammarReport(problems=error.problems)
        try:
            compiled, _ = await self._cache.compile(Source(SourceKind.GRAMMAR, grammar))
        except InvalidRequest as error:
            return GrammarReport(problems=(Problem(str(error)),), warnings=warnings)
        matches = None
        if text is not None:
            matches = await asyncio.to_thread(self._matcher.matches, compiled.engine_text, text)
        return GrammarReport(warnings=warnings, text_matches=matches)

    async def check_json(self, text: str) -> str:
        """Return why the text is not JSON; empty when it is."""
        self._bound_output(text)
        try:
            await asyncio.to_thread(parse_json, text)
        except JsonTextError as error:
            return str(error)
        return ""

    async def repair(self, text: str) -> RepairResult:
        """Make JSON of the text."""
        self._bound_output(text)
        return await asyncio.to_thread(repair_json, text)

    async def normalize(self, document: str, schema_json: str) -> tuple[str, tuple[str, ...]]:
        """Give enum values their declared form; returns the document and the changed paths."""
        self._bound_output(document)

        def work() -> tuple[str, tuple[str, ...]]:
            schema = parse_schema(schema_json, self._limits)
            build_validator(schema)
            return normalize_enums(document, schema)

        return await asyncio.to_thread(work)

    async def check_schema(self, document: str, schema_json: str) -> list[Violation]:
        """Return what of the document does not satisfy the schema; an empty schema allows anything."""
        self._bound_output(document)
        if not schema_json:
            return []

        def work() -> list[Violation]:
            validator = build_validator(parse_schema(schema_json, self._limits))
            try:
                return find_violations(document, validator)
            except JsonTextError as error:
                return [Violation(ErrorCode.CONSTRAINT_JSON_INVALID, f"the document is not JSON: {error}")]

        return await asyncio.to_thread(work)

    async def check_rules(self, output: str, rules: tuple[Rule, ...]) -> list[Violation]:
        """Return the rules that do not hold."""
        self._bound_output(output)
        return await asyncio.to_thread(lambda: compile_rules(rules).check(output))

    def _bound_output(self, text: str) -> None:
        size = len(text.encode())
        if size > self._limits.max_output_bytes:
            raise InvalidRequest(
                f"the output is too large: {size} bytes, at most {self._limits.max_output_bytes} are taken",
                code=ErrorCode.CONSTRAINT_TOO_COMPLEX,
            )


def semantics_unsupported() -> Unsupported:
    """Return the error for the stage that is not there yet."""
    return Unsupported("the semantic stage is not available in this version: leave semantic_intent empty")
