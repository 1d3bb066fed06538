"""The server's own tools: `ask`, `extract`, `vote` and `plan`, each a mode of the orchestrator.

The tools turn arguments into a SystemRequest. The orchestrator decides whether the values are valid.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self

from mcp_types import Tool, ToolAnnotations
from pydantic import ConfigDict, Field, ValidationError

from gateway.web.forms import Items
from gateway.web.optional import OptionalFields
from pagantic.orchestrator.v1 import execution_pb2, plan_pb2
from pagantic_common.client import Options, chat_request, plan_request, plan_step, structured_request, vote_request
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.json_text import dump_json
from pagantic_common.rpc.counting import LIMITS

Schema = dict[str, Any] | bool
MAX_PROBLEMS = 8
MAX_STEPS = LIMITS["pagantic.orchestrator.v1.ExecutionPlan.steps"]
MAX_TOOLS = LIMITS["pagantic.orchestrator.v1.SystemRequest.tools"]


class _Arguments(OptionalFields):
    """The common arguments of all tools."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    system: str = Field("", description="System prompt.")
    collection: str = Field("", description="Collection of documents to answer from; resources list the collections.")
    model: str = Field("", description="Model to use; empty is the default.")
    max_tokens: int = Field(0, ge=0, le=2**31 - 1, description="Most output tokens; 0 is the system's default.")
    temperature: float | None = Field(None, description="Randomness, 0 to 2; 0 takes the likeliest token.")
    timeout_s: float | None = Field(None, gt=0, le=3600, description="Longest time for the call, seconds.")

    @classmethod
    def read(cls, arguments: Mapping[str, Any]) -> Self:
        """Parse the arguments. Raises InvalidRequest, which names the invalid argument."""
        try:
            return cls.model_validate(arguments)
        except ValidationError as error:
            raise InvalidRequest(_describe(error)) from None

    @abstractmethod
    def request(self, request_id: str) -> execution_pb2.SystemRequest:
        """Return the request of the call."""

    def options(self, request_id: str) -> Options:
        """Return the options of the request."""
        options: Options = {"request_id": request_id, "model": self.model, "context": self.collection}
        if self.max_tokens:
            options["max_tokens"] = self.max_tokens
        if self.temperature is not None:
            options["temperature"] = self.temperature
        if self.timeout_s is not None:
            options["timeout_s"] = self.timeout_s
        return options


class AskArguments(_Arguments):
    """Arguments of `ask`."""

    EMPTY_IS_A_VALUE: ClassVar = frozenset({"tools"})

    question: str = Field(description="The question, or the next words of a conversation.")
    session_id: str = Field("", description="Conversation to continue; empty stores none.")
    tools: Annotated[list[str], Items(MAX_TOOLS)] | None = Field(
        None, description="Names of the tools that the model may call; without it every tool, and none for []."
    )

    def request(self, request_id: str) -> execution_pb2.SystemRequest:
        """Return the CHAT request."""
        return chat_request(
            self.question,
            session_id=self.session_id,
            tools=self.tools,
            system=self.system,
            **self.options(request_id),
        )


class ExtractArguments(_Arguments):
    """Arguments of `extract`."""

    EMPTY_IS_A_VALUE: ClassVar = frozenset({"schema"})

    text: str = Field(description="The text, with what is asked of it.")
    output_schema: Schema = Field(alias="schema", description="JSON Schema that the answer satisfies.")
    tools: Annotated[list[str], Items(MAX_TOOLS)] = Field(
        [], description="Names of the tools that the model may call before it answers."
    )

    def request(self, request_id: str) -> execution_pb2.SystemRequest:
        """Return the STRUCTURED request."""
        return structured_request(
            self.text, self.output_schema, tools=self.tools, system=self.system, **self.options(request_id)
        )


class VoteArguments(_Arguments):
    """Arguments of `vote`."""

    EMPTY_IS_A_VALUE: ClassVar = frozenset({"schema"})

    question: str = Field(description="The question.")
    output_schema: Schema = Field(alias="schema", description="JSON Schema that each answer satisfies.")
    n: int = Field(3, ge=0, le=2**31 - 1, description="How many answers vote, at most 16.")
    strategy: Literal["majority", "strict_majority", "unanimity", "field_majority"] = Field(
        "majority", description="How votes are counted."
    )
    min_agreement: float = Field(0.0, description="Least fraction of n that the winner needs, 0 to 1.")

    def request(self, request_id: str) -> execution_pb2.SystemRequest:
        """Return the REDUNDANT request."""
        return vote_request(
            self.question,
            self.output_schema,
            n=self.n,
            strategy=self.strategy,
            min_agreement=self.min_agreement,
            system=self.system,
            **self.options(request_id),
        )


class PlanStep(OptionalFields):
    """A step of a plan."""

    EMPTY_IS_A_VALUE: ClassVar = frozenset({"schema"})

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(description="Unique within the plan.")
    kind: str = Field(description="infer, tool, validate, retrieve, rerank, wait, or a kind of the deployment.")
    parameters: dict[str, Any] = Field({}, description="Parameters of the kind, such as prompt, tool, collection.")
    depends_on: Annotated[list[str], Items(MAX_STEPS)] = Field(
        [], description="Names of the steps whose outputs it takes."
    )
    output_schema: Schema | None = Field(None, alias="schema", description="JSON Schema of its output.")

    def step(self) -> plan_pb2.Step:
        """Return the step in the form of the contract."""
        step = plan_step(self.name, self.kind, depends_on=self.depends_on, schema=self.output_schema)
        if self.parameters:
            step.parameters_json = dump_json(self.parameters)
        return step


class PlanArguments(_Arguments):
    """Arguments of `plan`."""

    task: str = Field(description="The task that the plan does.")
    steps: Annotated[list[PlanStep], Items(MAX_STEPS)] | None = Field(
        None, description="The steps; without them the planner makes a plan."
    )
    tools: Annotated[list[str], Items(MAX_TOOLS)] = Field(
        [], description="Names of the tools that the plan may use; none named is every tool."
    )

    def request(self, request_id: str) -> execution_pb2.SystemRequest:
        """Return the PLAN request."""
        steps = None
        if self.steps is not None:
            steps = [step.step() for step in self.steps]
        return plan_request(self.task, steps, tools=self.tools, system=self.system, **self.options(request_id))


_ARGUMENTS: Mapping[str, type[_Arguments]] = MappingProxyType(
    {"ask": AskArguments, "extract": ExtractArguments, "vote": VoteArguments, "plan": PlanArguments}
)
_DESCRIPTIONS = {
    "ask": "Answers a question, or takes the next turn of a stored conversation, with the tools of the deployment.",
    "extract": "Answers with JSON that satisfies a schema: reads data out of a text, sorts it, fills in a form.",
    "vote": "Asks the same question several times and gives the answer that most agree on, with its confidence.",
    "plan": "Does a task in several steps: given ones, or those that a planner makes.",
}
NAMES = frozenset(_ARGUMENTS)


def own_tools() -> list[Tool]:
    """Return the tools in the form for clients."""
    return [_define(name, arguments) for name, arguments in _ARGUMENTS.items()]


def read_own_call(name: str, arguments: Mapping[str, Any], request_id: str) -> execution_pb2.SystemRequest:
    """Return the request for a call of one of these tools. Raises InvalidRequest if the arguments are invalid."""
    return _ARGUMENTS[name].read(arguments).request(request_id)


def _define(name: str, arguments: type[_Arguments]) -> Tool:
    # These tools may run tools of the deployment with all their permissions, so they are not declared harmless.
    annotations = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False)
    if name == "vote":
        annotations = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    return Tool(
        name=name,
        description=_DESCRIPTIONS[name],
        input_schema=arguments.model_json_schema(by_alias=True),
        annotations=annotations,
    )


def _describe(error: ValidationError) -> str:
    problems = [
        f"argument {'.'.join(map(str, problem['loc'])) or 'object'!r}: {problem['msg'].lower()}"
        for problem in error.errors(include_input=False, include_url=False)
    ]
    return "; ".join(problems[:MAX_PROBLEMS])
