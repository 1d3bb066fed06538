"""Defines the inputs of a run: the answers to its commands, including failures."""

from __future__ import annotations

from dataclasses import dataclass

from pagantic_common.domain.errors import Failure
from pagantic_common.domain.text.calibration import LabelCalibration
from pagantic_common.domain.text.json_text import JsonTextError, parse_json
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.domain.validation import Enforcement
from services.orchestrator.core.model.plan import Plan, StepResult
from services.orchestrator.core.model.prepared import Prepared
from services.orchestrator.core.model.response import InferenceOutput, ToolCallRecord, WrongCall
from services.orchestrator.core.model.response_warning import ResponseWarning

GuardWarnings = tuple[ResponseWarning, ...]


@dataclass(frozen=True, slots=True)
class InputChecked:
    """The result of the guards for a request that they did not block.

    `texts` contains all texts of the request in order if a guard redacted any of them, and is empty otherwise.
    """

    texts: tuple[str, ...] = ()
    warnings: GuardWarnings = ()
    usage: TokenUsage = TokenUsage()


@dataclass(frozen=True, slots=True)
class Inferred:
    """The result of an inference.

    `output` is the output after the guards, and `warnings` are the guards' warnings and the warnings about calls that
    the caller runs. `score_usage` is the usage of estimating whether the sources contain the answer. `wrong_calls` are
    calls that the model should correct before the caller runs them.
    """

    output: InferenceOutput
    score_usage: TokenUsage = TokenUsage()
    warnings: GuardWarnings = ()
    wrong_calls: tuple[WrongCall, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolsRan:
    """The results of all calls of one round, in call order."""

    records: tuple[ToolCallRecord, ...]


@dataclass(frozen=True, slots=True)
class Enforced:
    """The result of the constraint pipeline."""

    enforcement: Enforcement


@dataclass(frozen=True, slots=True)
class Replica:
    """The result of one replica: the enforcement of its output, or a failure."""

    index: int
    enforcement: Enforcement | None = None
    failure: Failure | None = None

    @property
    def is_valid_vote(self) -> bool:
        """Whether the replica votes. Otherwise it abstains."""
        if self.enforcement is None or not self.enforcement.valid or self.failure is not None:
            return False
        try:
            parse_json(self.enforcement.structured_output_json, is_rewritable=True)
        except JsonTextError:  # A number too large for a double or half of a surrogate pair is not comparable.
            return False
        return True


@dataclass(frozen=True, slots=True)
class Sampled:
    """The results of all replicas, or of enough replicas to decide the vote.

    `seed` is the seed of replica 0.
    """

    replicas: tuple[Replica, ...]
    usage: TokenUsage
    seed: int | None = None
    model: str = ""
    warnings: GuardWarnings = ()


@dataclass(frozen=True, slots=True)
class Decided:
    """The scores of the questions.

    `logprobs` are the log-probabilities (natural logarithm) of each question's labels, `model` is the alias that
    scored them, and `calibration` is the calibration that scales them.
    """

    logprobs: tuple[tuple[float, ...], ...]
    usage: TokenUsage = TokenUsage()
    model: str = ""
    calibration: LabelCalibration | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan that the planner made."""

    plan: Plan
    usage: TokenUsage = TokenUsage()
    model: str = ""


@dataclass(frozen=True, slots=True)
class PlanRan:
    """The results of the plan's steps, either of all steps or of the steps up to a failure.

    `enforcement` belongs to the output of the final step.
    """

    results: tuple[StepResult, ...]
    records: tuple[ToolCallRecord, ...] = ()
    enforcement: Enforcement | None = None
    model: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """The failure of the outstanding command, or the cancellation of the execution.

    The other fields are partial results: `records` of an unfinished turn, `results` of an unfinished plan, `replicas`
    and `usage` of an unfinished vote, and the `output` of a stopped inference.
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
