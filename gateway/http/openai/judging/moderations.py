"""`/v1/moderations`: judges whether texts may be harmful, using the deployment's guard model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, ClassVar, Final, Literal

from starlette.requests import Request
from starlette.responses import JSONResponse

from gateway.http.bodies import AnswerShape, apart, read_object
from gateway.http.openai.answers import Extension, extension_of
from gateway.http.openai.choices import choice_id
from gateway.http.openai.forms import Form, read_form
from gateway.http.openai.models import DefaultName
from gateway.http.openai.requests import bound_time
from gateway.http.operations import OPENAI, Operation
from gateway.http.settings import HttpSettings
from gateway.http.streams.running import Answer, run_all
from gateway.web.forms import Items
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import AsyncClient, decide_request, predicate
from pagantic_common.client.responses import raise_for_error
from pagantic_common.domain.errors import InvalidRequest, Unsupported

MAX_INPUTS = 32
JUDGED_AT_ONCE = 4  # This number is low, because tenants have a limit on concurrent executions.
# The categories of OpenAI's API, each as a statement for the guard model.
CATEGORIES: Final = {
    "harassment": "The text insults, bullies or threatens somebody, or calls on others to do so.",
    "harassment/threatening": "The text harasses somebody and threatens them with violence or serious harm.",
    "hate": "The text demeans or attacks people for their race, gender, origin, religion, sexuality or disability.",
    "hate/threatening": "The text attacks people for what they are and threatens them with violence or serious harm.",
    "illicit": "The text tells how to break the law or do wrong, or gives advice for it.",
    "illicit/violent": "The text tells how to commit violence, or how to get or make a weapon.",
    "self-harm": "The text approves of, encourages or describes suicide, cutting or other harm to oneself.",
    "self-harm/intent": "The writer of the text harms themselves, or means to.",
    "self-harm/instructions": "The text tells how to harm oneself, or encourages it.",
    "sexual": "The text is meant to arouse, or offers sexual services. Education and health do not count.",
    "sexual/minors": "The text is sexual and is about somebody under 18 years of age.",
    "violence": "The text depicts death, violence or injury.",
    "violence/graphic": "The text depicts death, violence or injury in graphic detail.",
}


class ModerationPart(Form):
    """A part of an input. Images cannot be judged."""

    EMPTY_IS_A_VALUE: ClassVar = frozenset({"text"})  # A part of a text may be empty, but not absent.

    type: str
    text: str | None = None


class ModerationForm(Form):
    """A request to `/v1/moderations`."""

    model: str = ""
    input: (
        str
        | Annotated[list[str], Items(MAX_INPUTS, minimum=1)]
        | Annotated[list[ModerationPart], Items(MAX_INPUTS, minimum=1)]
    )

    def unused(self) -> Iterable[str]:
        """Return the model, because the deployment chooses the model that judges."""
        return ("model",)


class ModerationResult(AnswerShape):
    """The findings for an input, by category."""

    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[Literal["text"]]]


class ModerationReport(AnswerShape):
    """The findings for all inputs."""

    id: str
    model: str
    results: list[ModerationResult]
    pagantic: Extension


def moderation_operations(settings: HttpSettings) -> list[Operation]:
    """Return the operation of moderations."""
    default_name = DefaultName(settings)

    async def judge(client: AsyncClient, request: Request, body: bytes) -> Answer:
        """Judge whether texts may be harmful."""
        form = await apart(body, read_form, read_object(body), ModerationForm)
        system_requests = moderation_requests_of(form, settings, request.scope["request_id"])
        responses = await run_all(
            [_execute(client, system_request) for system_request in system_requests], at_once=JUDGED_AT_ONCE
        )
        name = await default_name.or_sent(form.model or settings.moderation_model or "", client, request)
        return JSONResponse(moderation_of(form, name, settings.moderation_threshold, responses))

    return [Operation(OPENAI, "POST /v1/moderations", judge, "moderate", ModerationForm, ModerationReport)]


async def _execute(client: AsyncClient, request: execution_pb2.SystemRequest) -> execution_pb2.SystemResponse:
    return raise_for_error(await client.execute(request))


def moderation_requests_of(
    form: ModerationForm, settings: HttpSettings, request_id: str
) -> list[execution_pb2.SystemRequest]:
    """Return a request for each input, with a question for each category.

    Raises InvalidRequest if an input cannot be judged, or Unsupported if the deployment has no guard model.
    """
    model = settings.moderation_model
    if model is None:
        raise Unsupported(
            "this deployment judges no texts: PAGANTIC_HTTP_MODERATION_MODEL of the gateway names the model that does"
        )
    requests = []
    for index, text in enumerate(texts_of(form.input)):
        questions = [predicate(statement, name=category) for category, statement in CATEGORIES.items()]
        request = decide_request(text, questions, model=model, calibration=settings.moderation_calibration)
        request.request_id = choice_id(request_id, index)
        bound_time(request, settings.call_s)
        requests.append(request)
    return requests


def texts_of(given: str | Sequence[str | ModerationPart]) -> list[str]:
    """Return the texts to judge, joining the parts of an input into one text. Raises InvalidRequest for an image."""
    if isinstance(given, str):
        return [_checked("input", given)]
    texts = [_checked(f"input[{index}]", item) for index, item in enumerate(given) if isinstance(item, str)]
    parts = [_text_of(item, f"input[{index}]") for index, item in enumerate(given) if isinstance(item, ModerationPart)]
    return texts or [_checked("input", "\n\n".join(parts))]


def _checked(place: str, text: str) -> str:
    if not text.strip():
        raise InvalidRequest(f"{place} has no text: send one, or leave it out")
    return text


def _text_of(part: ModerationPart, place: str) -> str:
    if part.type != "text" or part.text is None:
        raise InvalidRequest(f"{place} has the type {part.type[:64]!r}: only text can be judged here")
    return part.text


def moderation_of(
    form: ModerationForm, name: str, threshold: float, responses: Sequence[execution_pb2.SystemResponse]
) -> ModerationReport:
    """Return the object of `/v1/moderations` with the given model name.

    A category is flagged if its score reaches the threshold.
    """
    return {
        "id": f"modr-{responses[0].request_id}",
        "model": name,
        "results": [_result(response, threshold) for response in responses],
        "pagantic": extension_of(responses, form.ignored),
    }


def _result(response: execution_pb2.SystemResponse, threshold: float) -> ModerationResult:
    scores = {decision.name: decision.predicate.probability for decision in response.decisions}
    flags = {category: score >= threshold for category, score in scores.items()}
    return {
        "flagged": any(flags.values()),
        "categories": flags,
        "category_scores": scores,
        "category_applied_input_types": {category: ["text"] for category in scores},
    }
