"""The inputs of a run: the answers to its commands, and failures."""

from __future__ import annotations

from dataclasses import dataclass

from pagantic_common.domain.errors import Failure
from pagantic_common.domain.text.calibration import LabelCalibration
from pagantic_common.domain.text.json_text import JsonTextError, parse_json
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.domain.validation import Enforcement
from services.orchestrator.core.model.plan import Plan, StepResult
from services.orchestrator.core.model.prepared import Prepared
from services.orchestrator.core.model.response import InferenceOutput, ToolCallRecord
from services.orchestrator.core.model.response_warning import ResponseWarning

GuardWarnings = tuple[ResponseWarning, ...]


@dataclass(frozen=True, slots=True)
class InputChecked:
    """The guards let a request pass; `texts` are its texts in order if a guard redacted some, else empty."""

    texts: tuple[str, ...] = ()
    warnings: GuardWarnings = ()
    usage: TokenUsage = TokenUsage()


@dataclass(frozen=True, slots=True)
class Inferred:
    """An inference ended; `score_usage` is the usage of weighing whether the sources contain the answer.

    The output is the guarded output, and `warnings` are the guards' warnings.
    """

    output: InferenceOutput
    score_usage: TokenUsage = TokenUsage()
    warnings: GuardWarnings = ()


@dataclass(frozen=True, slots=True)
class ToolsRan:
    """All calls of one round ended, in call order."""

    records: tuple[ToolCallRecord, ...]


@dataclass(frozen=True, slots=True)
class Enforced:
    """The constraint pipeline ended."""

    enforcement: Enforcement


@dataclass(frozen=True, slots=True)
class Replica:
    """The end of one replica: the enforcement of its output, or a failure."""

    index: int
    enforcement: Enforcement | None = None
    failure: Failure | None = None

    @property
    def is_valid_vote(self) -> bool:
        """Whether the replica votes; else it abstains."""
        if self.enforcement is None or not self.enforcement.valid or self.failure is not None:
            return False
        try:
            parse_json(self.enforcement.structured_output_json, is_rewritable=True)
        except JsonTextError:  # a number beyond a double, half of a surrogate pair: not canonical, so not comparable
            return False
        return True


@dataclass(frozen=True, slots=True)
class Sampled:
    """The replicas ended, or enough of them to decide the vote; `seed` is the seed of replica 0."""

    replicas: tuple[Replica, ...]
    usage: TokenUsage
    seed: int | None = None
    model: str = ""
    warnings: GuardWarnings = ()


@dataclass(frozen=True, slots=True)
class Decided:
    """The questions were scored.

    `logprobs` are the log-probabilities (natural logarithm) of each question's labels, `model` is the alias that
    scored them, and `calibration` is the calibration that scales them.
    """

    logprobs: tuple[tuple[float, ...], ...]
    usage: TokenUsage = TokenUsage()
    model: str = ""
    calibration: LabelCalibration | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """The planner made a plan."""

    plan: Plan
    usage: TokenUsage = TokenUsage()
    model: str = ""


@dataclass(frozen=True, slots=True)
class PlanRan:
    """The plan's steps ended, all or up to a failure; `enforcement` belongs to the final step's output."""

    results: tuple[StepResult, ...]
    records: tuple[ToolCallRecord, ...] = ()
    enforcement: Enforcement | None = None
    model: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """The outstanding command failed, or the execution was cancelled.

    The other fields are partial results: `records` of an unfinished turn, `results` of an unfinished plan, `replicas`
    and `usage` of an unfinished vote, `output` of a stopped inference.
    """

    failure: Failure
    records: tuple[ToolCallRecord, ...] = ()
    results: tuple[StepResult, ...] = ()
    replicas: tuple[Replica, ...] = ()
    usage: TokenUsage = TokenUsage()
    output: InferenceOutput | None = None


Input = InputChecked | Prepared | Inferred | Sampled | Decided | ToolsRan | Enforced | Planned | PlanRan | Failed


def usage_of(happened: Input) -> TokenUsage:  # noqa: PLR0911 - an arm for each input
    """Return the usage that an input adds to a run."""
    match happened:
        case InputChecked(usage=usage) | Prepared(usage=usage) | Planned(usage=usage) | Decided(usage=usage):
            return usage
        case Inferred(output=output, score_usage=score_usage):
            return output.usage + score_usage
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
    if failed.output is None:
        return usage
    return usage + failed.output.usage
