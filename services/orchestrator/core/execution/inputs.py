"""What happens to a run: the answers of its commands, and failures."""

from __future__ import annotations

from dataclasses import dataclass

from pagantic_common.domain.errors import Failure
from pagantic_common.domain.json_text import JsonTextError, parse_json
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.domain.validation import Enforcement
from services.orchestrator.core.model.plan import Plan, StepResult
from services.orchestrator.core.model.prepared import Prepared
from services.orchestrator.core.model.response import InferenceOutput, ToolCallRecord


@dataclass(frozen=True, slots=True)
class Inferred:
    """An inference ended."""

    output: InferenceOutput


@dataclass(frozen=True, slots=True)
class ToolsRan:
    """All calls of one model turn ended, in call order."""

    records: tuple[ToolCallRecord, ...]


@dataclass(frozen=True, slots=True)
class Enforced:
    """The constraint pipeline ended."""

    enforcement: Enforcement


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica's end: what the pipeline found of its output, or why it has none."""

    index: int
    enforcement: Enforcement | None = None
    failure: Failure | None = None

    @property
    def is_valid_vote(self) -> bool:
        """Whether it votes; else it abstains."""
        if self.enforcement is None or not self.enforcement.valid or self.failure is not None:
            return False
        try:
            parse_json(self.enforcement.structured_output_json, is_rewritable=True)
        except JsonTextError:  # a number beyond a double, half of a surrogate pair: not canonical, so not comparable
            return False
        return True


@dataclass(frozen=True, slots=True)
class Sampled:
    """The replicas ended, or as many as decide the vote; `seed` is that of replica 0."""

    replicas: tuple[Replica, ...]
    usage: TokenUsage
    seed: int | None = None
    model: str = ""


@dataclass(frozen=True, slots=True)
class Planned:
    """The planner made a plan."""

    plan: Plan
    usage: TokenUsage = TokenUsage()
    model: str = ""


@dataclass(frozen=True, slots=True)
class PlanRan:
    """The plan's steps ended, all or up to the first that failed; `enforcement` is of the final step's output."""

    results: tuple[StepResult, ...]
    records: tuple[ToolCallRecord, ...] = ()
    enforcement: Enforcement | None = None
    model: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """Something failed that the machine cannot mend, or the execution was cancelled.

    `records` are tool calls that ended although their turn did not, `results` steps that ended although their plan
    did not, `replicas` and `usage` what ended of a vote, `output` what an inference had given when it was stopped.
    """

    failure: Failure
    records: tuple[ToolCallRecord, ...] = ()
    results: tuple[StepResult, ...] = ()
    replicas: tuple[Replica, ...] = ()
    usage: TokenUsage = TokenUsage()
    output: InferenceOutput | None = None


Input = Prepared | Inferred | Sampled | ToolsRan | Enforced | Planned | PlanRan | Failed


def usage_of(happened: Input) -> TokenUsage:  # noqa: PLR0911 - an arm for each input
    """Return what a run's usage gains by an input."""
    match happened:
        case Prepared(usage=usage) | Planned(usage=usage):
            return usage
        case Inferred(output=output):
            return output.usage
        case Sampled():
            return happened.usage + _judge_usage(happened.replicas)
        case Enforced(enforcement=enforcement):
            return enforcement.judge_usage
        case PlanRan(results=results):
            return sum((result.usage for result in results), TokenUsage())
        case Failed():
            return _usage_of_failed(happened)
        case ToolsRan():
            return TokenUsage()


def _judge_usage(replicas: tuple[Replica, ...]) -> TokenUsage:
    judged = (replica.enforcement.judge_usage for replica in replicas if replica.enforcement is not None)
    return sum(judged, TokenUsage())


def _usage_of_failed(failed: Failed) -> TokenUsage:
    usage = sum((result.usage for result in failed.results), failed.usage) + _judge_usage(failed.replicas)
    return usage if failed.output is None else usage + failed.output.usage
