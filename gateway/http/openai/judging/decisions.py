"""`/v1/decisions`: converts a request to a SystemRequest in MODE_DECIDE, and its response to OpenAI's form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar, Literal, NotRequired, TypeVar

from pydantic import StrictBool, StrictStr
from starlette.requests import Request
from starlette.responses import JSONResponse

from gateway.http.bodies import AnswerShape, apart, read_object, take_request_id
from gateway.http.openai.answers import Extension, extension_of
from gateway.http.openai.forms import MAX_ENTRIES, MAX_PARTS, Form, MoreFields, read_form
from gateway.http.openai.models import DefaultName
from gateway.http.openai.requests import bound_time, read_extension
from gateway.http.openai.responses.objects import ResponseUsage, usage_of
from gateway.http.operations import OPENAI, Operation
from gateway.http.settings import HttpSettings
from gateway.http.streams.running import Answer
from gateway.web.forms import Items
from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import decision_pb2, execution_pb2
from pagantic_common.client import AsyncClient
from pagantic_common.client.responses import raise_for_error
from pagantic_common.codec.fields import name_of
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.json_text import dump_json
from pagantic_common.rpc.counting import LIMITS

_ROLES = {
    None: message_pb2.ROLE_USER,
    "system": message_pb2.ROLE_SYSTEM,
    "developer": message_pb2.ROLE_SYSTEM,
    "user": message_pb2.ROLE_USER,
    "assistant": message_pb2.ROLE_ASSISTANT,
}
_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
MAX_QUESTIONS = LIMITS["pagantic.orchestrator.v1.Decisions.questions"]
MAX_ANSWERS = LIMITS["pagantic.orchestrator.v1.ChoiceQuestion.options"]  # Also the limit on levels of a score.
_FIELDS_OF_QUESTION = {"choice": ("choices",), "score": ("levels",)}


class InputPart(Form):
    """A part of a text. Images cannot be read."""

    EMPTY_IS_A_VALUE: ClassVar = frozenset({"text", "refusal", "data"})  # A part may be empty, but not absent.

    type: str
    text: str | None = None
    refusal: str | None = None
    data: dict[str, Any] | Annotated[list[dict[str, Any]], Items(MAX_ENTRIES)] | None = None

    def unused(self) -> Iterable[str]:
        """Return the fields of other types of parts."""
        return self.all_except("type", {"input_json": "data", "refusal": "refusal"}.get(self.type, "text"))


Text = str | Annotated[list[InputPart], Items(MAX_PARTS)]


class InputItem(Form):
    """A message, a call, or the output of a call."""

    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Text | None = None
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    input: str = ""
    output: Text | None = None

    def unused(self) -> Iterable[str]:
        """Return the fields of other types of items, and the input of a call that also has arguments."""
        if self.type in _CALLS:
            return self.all_except("type", "call_id", "name", "arguments", *(() if self.arguments else ("input",)))
        return self.all_except("type", *(("call_id", "output") if self.type in _OUTPUTS else ("role", "content")))


class ChoiceOption(Form):
    """An option of a choice. The values true and "true" are different."""

    value: StrictBool | StrictStr
    description: str | None = None


class ScoreLevel(Form):
    """A level of a scale."""

    label: str
    description: str | None = None


class QuestionForm(Form):
    """A question. A choice has `choices`, and a score has `levels`."""

    type: Literal["predicate", "choice", "score"]
    instructions: Text
    name: str | None = None
    choices: Annotated[list[ChoiceOption], Items(MAX_ANSWERS, minimum=2)] | None = None
    levels: Annotated[list[ScoreLevel], Items(MAX_ANSWERS, minimum=2)] | None = None

    def unused(self) -> Iterable[str]:
        """Return the answers of other types of questions."""
        return self.all_except("type", "instructions", "name", *_FIELDS_OF_QUESTION.get(self.type, ()))


class DecisionForm(Form):
    """A request to `/v1/decisions`."""

    model: str = ""
    input: str | Annotated[list[InputItem], Items(MAX_ENTRIES, minimum=1)]
    questions: Annotated[list[QuestionForm], Items(MAX_QUESTIONS, minimum=1)]
    pagantic: MoreFields | None = None


AnswerT = TypeVar("AnswerT", ChoiceOption, ScoreLevel)


class DecisionAnswer(AnswerShape):
    """The answer to a question. An abstention is a refusal."""

    type: Literal["predicate", "choice", "score", "refusal"]
    name: str | None
    probability: NotRequired[float]
    choice: NotRequired[bool | str]
    score: NotRequired[float]
    confidence: NotRequired[float]
    probabilities: NotRequired[list[dict[str, Any]]]


class DecisionDetail(AnswerShape):
    """Details of a decision that the API has no field for. `abstention` is the reason for a refusal."""

    confidence: float
    label_mass: float
    abstention: NotRequired[str]


class DecisionExtension(Extension):
    """Response details that the API has no field for, including the details of each question."""

    decisions: list[DecisionDetail]


class DecisionList(AnswerShape):
    """The answers to the questions, in the order of the questions."""

    model: str
    answers: list[DecisionAnswer]
    usage: ResponseUsage
    pagantic: DecisionExtension


def decision_operations(settings: HttpSettings) -> list[Operation]:
    """Return the operation of decisions."""
    default_name = DefaultName(settings)

    async def decide(client: AsyncClient, request: Request, body: bytes) -> Answer:
        """Answer questions about an input."""
        form = await apart(body, read_form, read_object(body), DecisionForm)
        system_request = await apart(body, decision_request_of, form, settings.alias_of(form.model), settings.call_s)
        take_request_id(system_request, request)
        response = raise_for_error(await client.execute(system_request))
        name = await default_name.or_sent(form.model, client, request)
        return JSONResponse(decision_of(form, name, response))

    return [Operation(OPENAI, "POST /v1/decisions", decide, "decide", DecisionForm, DecisionList)]


def decision_request_of(form: DecisionForm, alias: str, call_s: float) -> execution_pb2.SystemRequest:
    """Return the request for a form. Raises InvalidRequest if the form uses an unsupported feature.

    See `request_of` for the arguments.
    """
    request = read_extension(form.pagantic or {})
    if request.decisions.questions:
        raise InvalidRequest("pagantic.decisions.questions is set: the questions are those of the request itself")
    request.mode = execution_pb2.MODE_DECIDE
    request.messages.extend(_messages(form.input))
    request.decisions.questions.extend(
        _question(question, f"questions[{index}]") for index, question in enumerate(form.questions)
    )
    if alias:
        request.hints.model = alias
    bound_time(request, call_s)
    return request


def _messages(asked: str | Sequence[InputItem]) -> list[message_pb2.Message]:
    if isinstance(asked, str):
        return [message_pb2.Message(role=message_pb2.ROLE_USER, content=asked)]
    names_of_calls: dict[str, str] = {}
    messages = []
    for index, item in enumerate(asked):
        messages.append(_message(item, f"input[{index}]", names_of_calls))
        names_of_calls.update({call.id: call.name for call in messages[-1].tool_calls})
    return messages


def _message(item: InputItem, place: str, names_of_calls: dict[str, str]) -> message_pb2.Message:
    if item.type in _CALLS:
        call = message_pb2.ToolCall(id=item.call_id, name=item.name, arguments_json=item.arguments or item.input)
        return message_pb2.Message(role=message_pb2.ROLE_ASSISTANT, tool_calls=[call])
    if item.type in _OUTPUTS:
        if item.call_id not in names_of_calls:
            raise InvalidRequest(f"{place}.call_id is {item.call_id[:128]!r}: no call before it has this id")
        return message_pb2.Message(
            role=message_pb2.ROLE_TOOL,
            tool_call_id=item.call_id,
            name=names_of_calls[item.call_id],
            content=_text_of(item.output, f"{place}.output"),
        )
    if item.type != "message":
        raise InvalidRequest(f"{place}.type is {item.type[:64]!r}: send messages, calls, or outputs of calls")
    return message_pb2.Message(role=_ROLES[item.role], content=_text_of(item.content, f"{place}.content"))


def _text_of(text: Text | None, place: str) -> str:
    if text is None or isinstance(text, str):
        return text or ""
    return "\n\n".join(_part(part, f"{place}[{index}]") for index, part in enumerate(text))


def _part(part: InputPart, place: str) -> str:
    if part.type == "input_json" and part.data is not None:
        return dump_json(part.data)
    if part.type == "refusal" and part.refusal is not None:
        return part.refusal
    if part.type in ("input_text", "output_text") and part.text is not None:
        return part.text
    raise InvalidRequest(
        f"{place} has the type {part.type[:64]!r}: models here read text alone, so send input_text or input_json"
    )


def _question(form: QuestionForm, place: str) -> decision_pb2.Question:
    question = decision_pb2.Question(
        name=form.name or "", instructions=_text_of(form.instructions, f"{place}.instructions")
    )
    match form.type:
        case "predicate":
            question.predicate.SetInParent()
        case "choice":
            question.choice.options.extend(map(_option, _answers(form.choices, f"{place}.choices")))
        case "score":
            question.score.levels.extend(map(_level, _answers(form.levels, f"{place}.levels")))
    return question


def _answers(answers: list[AnswerT] | None, place: str) -> list[AnswerT]:
    if answers is None:
        raise InvalidRequest(f"{place} is missing: it must have 2 to {MAX_ANSWERS} entries")
    return answers


def _option(choice: ChoiceOption) -> decision_pb2.Option:
    if isinstance(choice.value, bool):
        return decision_pb2.Option(flag=choice.value, description=choice.description or "")
    return decision_pb2.Option(text=choice.value, description=choice.description or "")


def _level(level: ScoreLevel) -> decision_pb2.Level:
    return decision_pb2.Level(label=level.label, description=level.description or "")


def decision_of(form: DecisionForm, name: str, response: execution_pb2.SystemResponse) -> DecisionList:
    """Return the object of `/v1/decisions` with the given model name. Abstentions become refusals."""
    answered = zip(form.questions, response.decisions, strict=True)
    return {
        "model": name,
        "answers": [_answer(question, decision) for question, decision in answered],
        "usage": usage_of(response.token_usage),
        "pagantic": {
            **extension_of([response], form.ignored),
            "decisions": [_detail(decision) for decision in response.decisions],
        },
    }


def _answer(question: QuestionForm, decision: decision_pb2.Decision) -> DecisionAnswer:
    if decision.abstention:
        return {"type": "refusal", "name": question.name}
    answer: DecisionAnswer = {"type": question.type, "name": question.name}
    match question.type:
        case "predicate":
            answer["probability"] = decision.predicate.probability
        case "choice":
            values = [choice.value for choice in question.choices or ()]
            answer["choice"] = values[decision.choice.index]
            answer["confidence"] = decision.confidence
            answer["probabilities"] = _shares([{"value": value} for value in values], decision.choice.probabilities)
        case "score":
            levels = [{"value": value, "label": level.label} for value, level in enumerate(question.levels or ())]
            answer["score"] = decision.score.score
            answer["confidence"] = decision.confidence
            answer["probabilities"] = _shares(levels, decision.score.probabilities)
    return answer


def _shares(values: Sequence[dict[str, Any]], probabilities: Sequence[float]) -> list[dict[str, Any]]:
    return [{**value, "probability": share} for value, share in zip(values, probabilities, strict=True)]


def _detail(decision: decision_pb2.Decision) -> DecisionDetail:
    """Return the details of a decision or refusal that this API has no field for."""
    detail: DecisionDetail = {"confidence": decision.confidence, "label_mass": decision.label_mass}
    if decision.abstention:
        detail["abstention"] = name_of(decision_pb2.Abstention, decision.abstention, "ABSTENTION_")
    return detail
