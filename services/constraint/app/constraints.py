"""The use cases. Each checks the size of its input and passes the work to the workers."""

from __future__ import annotations

from collections.abc import Sequence

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.validation import Enforcement, Violation
from pagantic_common.telemetry.logging import get_logger
from pagantic_common.workers.work_cache import WorkCache
from services.constraint.core.compilation import Compiled, Source, SourceKind
from services.constraint.core.grammars import GrammarReport
from services.constraint.core.judgement import Verdict, check_intent, require_intent, with_verdict
from services.constraint.core.model import Contract, Rule
from services.constraint.core.pipeline import StrategyFailure
from services.constraint.core.repair.json_repair import RepairResult
from services.constraint.core.schema import SchemaReport
from services.constraint.core.work import EnforceJob, Work
from services.constraint.ports import Judge, NamedGrammars, Workers

log = get_logger(__name__)


class Constraints:
    """The use cases of the service."""

    def __init__(
        self,
        work: Work,
        workers: Workers,
        *,
        cache_bytes: int,
        grammars: NamedGrammars,
        judge: Judge,
        clock: Clock,
    ) -> None:
        self._limits = work.limits
        self._work = work
        self._workers = workers
        self._cache: WorkCache[Compiled] = WorkCache(
            max_bytes=cache_bytes, size_of=lambda compiled: compiled.size_bytes, monotonic_s=clock.monotonic_s
        )
        self._grammars = grammars
        self._judge = judge
        self._clock = clock
        self._reported: set[tuple[str, str]] = set()

    async def compile(self, source: Source | None) -> tuple[Compiled, bool]:
        """Return the compiled source and whether it was cached. Raises InvalidRequest if `source` is None."""
        if source is None:
            kinds = "schema_json, grammar, grammar_name, regex, enum_list, cited_sources"
            raise InvalidRequest(f"no source is given: one of {kinds}")
        if source.kind is SourceKind.NAMED_GRAMMAR:
            source = Source(SourceKind.GRAMMAR, self._grammars.read(source.text))
        return await self._compile(source)

    async def _compile(self, source: Source) -> tuple[Compiled, bool]:
        self._limits.check_source(source.text, source.kind.value)
        return await self._cache.get(source.hash, lambda: self._workers.run(self._work.compile, source))

    async def enforce(
        self,
        output: str,
        contract: Contract,
        rules: tuple[Rule, ...] = (),
        intent: str = "",
        *,
        is_decoder_enforced: bool = False,
        judge_model: str = "",
        sources: tuple[str, ...] = (),
    ) -> Enforcement:
        """Run the stages that the contract declares. An invalid output is reported in the result, not raised."""
        contract.check()
        self._limits.check_output(output)
        self._limits.check_source("".join(sources), "list of cited sources")
        check_intent(intent)
        engine_text = await self._grammar_of(contract)
        monotonic_s = self._clock.monotonic_s
        job = EnforceJob(output, contract, rules, engine_text, is_decoder_enforced, sources)
        enforced = await self._workers.run(self._work.enforce, job, monotonic_s)
        self._report(enforced.strategy_failures)
        enforcement = enforced.enforcement
        if not intent or not enforcement.valid:
            return enforcement
        start_s = monotonic_s()
        verdict = await self._judge.judge(enforcement.output, intent, judge_model)
        return with_verdict(enforcement, verdict, monotonic_s() - start_s)

    def _report(self, failures: Sequence[StrategyFailure]) -> None:
        """Log the first failure of each strategy and kind of error. A failed strategy does not affect the output."""
        for failure in failures:
            if (failure.strategy, failure.kind) in self._reported:
                continue
            self._reported.add((failure.strategy, failure.kind))
            log.error("a repair strategy failed", strategy=failure.strategy, kind=failure.kind, reason=failure.message)

    async def _grammar_of(self, contract: Contract) -> str:
        """Return the engine text of the contract's grammar, or an empty string if there is no grammar to check."""
        grammar = contract.grammar
        if contract.grammar_name is not None:
            grammar = self._grammars.read(contract.grammar_name)
        if grammar is None or not contract.decoder_constraint:
            return ""
        compiled, _ = await self._compile(Source(SourceKind.GRAMMAR, grammar))
        return compiled.engine_text

    async def check_grammar(self, grammar: str, text: str | None) -> GrammarReport:
        """Parse and compile a grammar, and match the text, if any, against it."""
        self._limits.check_source(grammar, "grammar")
        self._limits.check_output(text or "")
        return await self._workers.run(self._work.check_grammar, grammar, text)

    async def check_json(self, text: str) -> str:
        """Return the reason why the text is not JSON, or an empty string if it is JSON."""
        self._limits.check_output(text)
        return await self._workers.run(self._work.check_json, text)

    async def repair(self, text: str) -> RepairResult:
        """Repair the text so that it becomes valid JSON."""
        self._limits.check_output(text)
        return await self._workers.run(self._work.repair_json, text)

    async def normalize(self, document: str, schema_json: str) -> tuple[str, tuple[str, ...]]:
        """Rewrite enum values in their declared form. Returns the document and the changed paths."""
        self._limits.check_output(document)
        self._limits.check_source(schema_json, "schema")
        return await self._workers.run(self._work.normalize_enums, document, schema_json)

    async def check_schema(self, document: str, schema_json: str, *, ignore_formats: bool = False) -> SchemaReport:
        """Check a document against a schema. An empty schema allows any document."""
        self._limits.check_output(document)
        self._limits.check_source(schema_json, "schema")
        if not schema_json:
            return SchemaReport()
        return await self._workers.run(self._work.check_schema, document, schema_json, ignore_formats)

    async def compile_rules(self, rules: tuple[Rule, ...], schema_json: str) -> None:
        """Check rules without an output. Raises InvalidRequest if a rule is invalid."""
        self._limits.check_source(schema_json, "schema")
        await self._workers.run(self._work.compile_rules, rules, schema_json)

    async def check_rules(self, output: str, rules: tuple[Rule, ...]) -> list[Violation]:
        """Return a violation for each rule that the output fails."""
        self._limits.check_output(output)
        return await self._workers.run(self._work.check_rules, output, rules)

    async def check_semantics(self, output: str, intent: str, judge_model: str) -> Verdict:
        """Ask a model whether the output meets the intent."""
        self._limits.check_output(output)
        require_intent(intent)
        return await self._judge.judge(output, intent, judge_model)
