"""The body of `/v1/completions`, and its conversion to SystemRequests, with a request for each prompt."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from gateway.http.openai.forms import MAX_CHOICES, MAX_INPUTS, MAX_TOKENS, MAX_TOP_LOGPROBS, AnswerForm, texts_of
from gateway.http.openai.requests import read_extension, set_answer
from gateway.web.forms import Items
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.domain.errors import InvalidRequest

DEFAULT_MAX_TOKENS = 16  # The default according to OpenAI's documentation.


class CompletionForm(AnswerForm):
    """A request to `/v1/completions`. Token ids as prompts, which OpenAI's documentation allows, are rejected."""

    prompt: str | Annotated[list[Any], Items(MAX_INPUTS)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None

    @property
    def choices_per_prompt(self) -> int:
        """The number of answers for each prompt."""
        return self.n or 1


def completion_requests_of(form: CompletionForm, alias: str, call_s: float) -> list[execution_pb2.SystemRequest]:
    """Return the requests for a form, in the order of its prompts.

    Raises InvalidRequest if the form uses an unsupported feature. See `text_request_of` for the arguments.
    """
    prompts = _prompts_of(form)
    _check_choices(form, len(prompts))
    if form.suffix:
        raise InvalidRequest("suffix is set: models here continue texts and do not fill in, so leave suffix out")
    if form.echo and form.logprobs is not None:
        raise InvalidRequest(
            "echo and logprobs are both set: the log-probabilities of the prompt are not known, so leave one of them "
            "out"
        )
    return [_request_of(form, prompt, alias, call_s) for prompt in prompts]


def text_request_of(form: AnswerForm, prompt: str, alias: str, call_s: float) -> execution_pb2.SystemRequest:
    """Return the request that continues a raw prompt. Raises InvalidRequest if a feature is unsupported.

    The form's field `pagantic` is a SystemRequest as JSON; the other fields override it.

    Args:
    form: The client's form.
    prompt: The text to continue.
    alias: The alias of the model that the form names.
    call_s: Maximum duration of the request, unless the request sets a shorter one.
    """
    request = read_extension(form.pagantic or {})
    request.text_prompt = prompt
    set_answer(request, form, alias, call_s)
    if not request.mode:
        request.mode = execution_pb2.MODE_CHAT
    return request


def _request_of(form: CompletionForm, prompt: str, alias: str, call_s: float) -> execution_pb2.SystemRequest:
    request = text_request_of(form, prompt, alias, call_s)
    request.hints.max_tokens = request.hints.max_tokens or DEFAULT_MAX_TOKENS
    if form.logprobs is not None:
        request.hints.top_logprobs = form.logprobs
    return request


def _prompts_of(form: CompletionForm) -> list[str]:
    prompts = texts_of("prompt", form.prompt or "")
    if not prompts or not all(prompts):
        raise InvalidRequest("prompt is missing, or has an empty text: send the text to continue, or a list of texts")
    return prompts


def _check_choices(form: CompletionForm, prompt_count: int) -> None:
    count = prompt_count * form.choices_per_prompt
    if count > MAX_CHOICES:
        raise InvalidRequest(
            f"{prompt_count} prompts with n {form.choices_per_prompt} ask for {count} answers, at most {MAX_CHOICES} "
            "are given: send fewer prompts at once, or lower n"
        )
    if form.best_of not in (None, 0, form.choices_per_prompt):
        raise InvalidRequest(
            f"best_of is {form.best_of} and n is {form.choices_per_prompt}: answers are not ranked, so leave best_of "
            "out"
        )
