"""The use-cases: each bounds its input and has its work done by the workers."""

from __future__ import annotations

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.validation import Enforcement, Violation
from pagantic_common.workers.work_cache import WorkCache
from services.constraint.core.compilation import Compiled, Source, SourceKind
from services.constraint.core.json_repair import RepairResult
from services.constraint.core.judgement import Verdict
from services.constraint.core.model import Contract, Rule
from services.constraint.core.pipeline import with_verdict
from services.constraint.core.schema import bound_source
from services.constraint.core.work import EnforceJob, GrammarReport, SchemaReport, Work
from services.constraint.ports import Judge, NamedGrammars, Workers

MAX_INTENT_CHARS = 4000


class Constraints:
    """Everything that the service does."""

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

    async def compile(self, source: Source) -> tuple[Compiled, bool]:
        """Compile a source; the flag says whether it was in the cache."""
        bound_source(source.text, self._limits, source.kind.value)
        return await self._cache.get(source.hash, lambda: self._workers.run(self._work.compile, source))

    async def compile_named(self, name: str) -> tuple[Compiled, bool]:
        """Compile a configured grammar."""
        return await self.compile(Source(SourceKind.GRAMMAR, self._grammars.read(name)))

    async def enforce(
        self,
        output: str,
        contract: Contract,
        rules: tuple[Rule, ...] = (),
        intent: str = "",
        *,
        decoder_enforced: bool = False,
        judge_model: str = "",
    ) -> Enforcement:
        """Run the stages that the contract declares; bad output is a value."""
        self._bound_output(output)
        _bound_intent(intent)
        grammar = contract.grammar
        if contract.grammar_name is not None:
            grammar = self._grammars.read(contract.grammar_name)
        engine_text = ""
        if grammar is not None and contract.decoder_constraint:
            engine_text = (await self.compile(Source(SourceKind.GRAMMAR, grammar)))[0].engine_text
        monotonic_s = self._clock.monotonic_s
        job = EnforceJob(output, contract, rules, engine_text, decoder_enforced)
        found = await self._workers.run(self._work.enforce, job, monotonic_s)
        if not intent or not found.valid:
            return found
        start_s = monotonic_s()
        verdict = await self._judge.judge(found.output, intent, judge_model)
        return with_verdict(found, verdict, monotonic_s() - start_s)

    async def check_grammar(self, grammar: str, text: str | None) -> GrammarReport:
        """Parse and compile a grammar, and match the text."""
        bound_source(grammar, self._limits, "grammar")
        self._bound_output(text or "")
        return await self._workers.run(self._work.check_grammar, grammar, text)

    async def check_json(self, text: str) -> str:
        """Return why the text is not JSON; empty when it is."""
        self._bound_output(text)
        return await self._workers.run(self._work.check_json, text)

    async def repair(self, text: str) -> RepairResult:
        """Make JSON of the text."""
        self._bound_output(text)
        return await self._workers.run(self._work.repair_json, text)

    async def normalize(self, document: str, schema_json: str) -> tuple[str, tuple[str, ...]]:
        """Give enum values their declared form; returns the document and the changed paths."""
        self._bound_output(document)
        bound_source(schema_json, self._limits, "schema")
        return await self._workers.run(self._work.normalize_enums, document, schema_json)

    async def check_schema(self, document: str, schema_json: str, *, ignore_formats: bool = False) -> SchemaReport:
        """Return what of the document does not satisfy the schema; an empty schema allows anything."""
        self._bound_output(document)
        bound_source(schema_json, self._limits, "schema")
        if not schema_json:
            return SchemaReport()
        return await self._workers.run(self._work.check_schema, document, schema_json, ignore_formats)

    async def compile_rules(self, rules: tuple[Rule, ...], schema_json: str) -> None:
        """Check rules before there is an output; raises InvalidRequest for one that is wrong."""
        bound_source(schema_json, self._limits, "schema")
        await self._workers.run(self._work.compile_rules, rules, schema_json)

    async def check_rules(self, output: str, rules: tuple[Rule, ...]) -> list[Violation]:
        """Return the rules that do not hold."""
        self._bound_output(output)
        return await self._workers.run(self._work.check_rules, output, rules)

    async def check_semantics(self, output: str, intent: str, judge_model: str) -> Verdict:
        """Ask a model whether the output meets the intent."""
        self._bound_output(output)
        _bound_intent(intent)
        if not intent:
            raise InvalidRequest("intent is empty: say what the output should achieve")
        return await self._judge.judge(output, intent, judge_model)

    def _bound_output(self, text: str) -> None:
        size = len(text.encode())
        if size > self._limits.max_output_bytes:
            raise InvalidRequest(
                f"the output is too large: {size} bytes, at most {self._limits.max_output_bytes} are taken",
                code=ErrorCode.CONSTRAINT_TOO_COMPLEX,
            )


def _bound_intent(intent: str) -> None:
    if len(intent) > MAX_INTENT_CHARS:
        raise InvalidRequest(f"the intent has {len(intent)} characters, at most {MAX_INTENT_CHARS} are taken")
