"""Turns a request into work for the engine's loop: its prompt as tokens, its output, and how to read its answers."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.telemetry.scope import current_deadline, current_principal
from services.inference.app.preparing.prompt_tokens import PromptTokenizer, PromptTokens
from services.inference.core.answers.answer import AnswerForm
from services.inference.core.answers.reasoning import with_reasoning
from services.inference.core.decoding.images import EncodedImage
from services.inference.core.decoding.output import Matcher, SampledOutput
from services.inference.core.generation import DEFAULT_MAX_TOKENS, ChatPrompt, InferenceRequest, Started
from services.inference.core.prompts.shared_prompts import SharedPrompts
from services.inference.core.scheduling.branches import DecodeRequest
from services.inference.core.scheduling.drafting import PromptLookup
from services.inference.ports import ChatTemplate, TextEngine


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that is ready to decode."""

    decode: DecodeRequest
    started: Started
    form: AnswerForm


class RequestPreparer:
    """Prepares requests for one model; callable from any thread.

    Args:
        engine: The model.
        template: Its chat template.
        may_draft: Whether to guess tokens: those that repeat the prompt, and by a draft model if there is one.
        new_seed: Gives the seed of a request that has none.
        shared_prompts: The beginnings of system messages that tenants share in the cache.
    """

    def __init__(
        self,
        engine: TextEngine,
        template: ChatTemplate,
        *,
        may_draft: bool,
        new_seed: Callable[[], int],
        shared_prompts: Sequence[str] = (),
    ) -> None:
        self._engine = engine
        self._prompts = PromptTokenizer(engine, template)
        self._may_draft = may_draft
        self._new_seed = new_seed
        self._shared = SharedPrompts([self._prompts.system_prefix(text) for text in shared_prompts])

    def tokenize(self, prompt: ChatPrompt | str, images: Sequence[EncodedImage] = ()) -> list[int]:
        """Return a prompt as the model sees it, with the images of its messages."""
        return self._prompts.tokenize(prompt, images=images).tokens

    def tokenize_endings(self, prompt: ChatPrompt | str, endings: Sequence[str]) -> tuple[list[int], list[list[int]]]:
        """Return what endings of a prompt have in common, and each from there on, as the model sees them."""
        return self._prompts.tokenize_endings(prompt, endings)

    def shared_length(self, tokens: Sequence[int]) -> int:
        """Return how many of a prompt's first tokens all tenants share in the cache."""
        return self._shared.shared_length(tokens)

    def prepare(
        self, request: InferenceRequest, matcher: Matcher | None, images: Sequence[EncodedImage] = ()
    ) -> PreparedRequest:
        """Return a request with its prompt tokenized; `matcher` enforces its constraint or its tool call.

        The `images` are those of its messages.

        Raises InvalidRequest, (INFERENCE_CONTEXT_EXCEEDED) for a prompt that does not fit into the context window.
        """
        prompt = self._prompts.tokenize(request.prompt, request.reasoning.mode, images)
        if not prompt.tokens:
            raise InvalidRequest("the prompt is empty")
        max_tokens = self._max_tokens(len(prompt.tokens), request.max_tokens)
        self._check_bias(request)
        self._check_stop_tokens(request)
        seed = request.seed
        if seed is None:
            seed = self._new_seed()
        form = prompt.form
        if request.constraint is not None:
            form = form.under_constraint()
        output = self._output(request, prompt, form, matcher, max_tokens)
        draws = tuple(_random_stream(seed + index) for index in range(request.candidate_count))
        said_text = output.resume(request.said_tokens, draws[0]) if request.said_tokens else ""
        decode = DecodeRequest(
            tokens=tuple(prompt.tokens),
            output=output,
            draws=draws,
            max_tokens=max_tokens,
            priority=request.priority,
            deadline=current_deadline(),
            tenant=current_principal().tenant,
            shared_tokens=self.shared_length(prompt.tokens),
            drafter=self._drafter(request, prompt),
            may_draft=self._may_draft,
            reports_tokens=request.reports_tokens,
            prefixes=request.prefixes,
            said_tokens=request.said_tokens,
            said_text=said_text,
            images=prompt.images,
        )
        return PreparedRequest(decode, Started(self._engine.model, len(prompt.tokens), 0, seed, uuid.uuid4().hex), form)

    def _output(
        self,
        request: InferenceRequest,
        prompt: PromptTokens,
        form: AnswerForm,
        matcher: Matcher | None,
        max_tokens: int,
    ) -> SampledOutput:
        stop = request.stop
        if form.is_enforced:
            stop = ()  # a stop string would cut the call's JSON
        else:
            matcher = with_reasoning(
                matcher, request.reasoning, form.dialect, self._engine.vocabulary, self._tokenize_control
            )
        return SampledOutput(
            vocabulary=self._engine.vocabulary,
            sampling=request.sampling,
            max_tokens=max_tokens,
            stop=stop,
            stop_tokens=request.stop_tokens,
            matcher=matcher,
            prompt_tokens=prompt.text_tokens,
            top_logprobs=request.top_logprobs,
        )

    def _tokenize_control(self, text: str) -> list[int]:
        return self._engine.tokenize(text, add_special=False, parse_special=True)

    def _drafter(self, request: InferenceRequest, prompt: PromptTokens) -> PromptLookup | None:
        if not self._may_draft or request.candidate_count > 1 or prompt.images:
            return None
        return PromptLookup(prompt.tokens)

    def _check_bias(self, request: InferenceRequest) -> None:
        size = self._engine.vocabulary.size
        if unknown := [token for token in request.sampling.logit_bias if token >= size]:
            raise InvalidRequest(f"sampling.logit_bias names token {unknown[0]}: the model has {size} tokens")

    def _check_stop_tokens(self, request: InferenceRequest) -> None:
        size = self._engine.vocabulary.size
        if unknown := [token for token in request.stop_tokens if not 0 <= token < size]:
            raise InvalidRequest(f"the stop token {unknown[0]} is not known: the model has the tokens 0 to {size - 1}")

    def _max_tokens(self, prompt_tokens: int, max_tokens: int) -> int:
        """Return the limit of the output, that of the request if it has one; raises InvalidRequest without room."""
        window = self._engine.model.context_window
        left = window - prompt_tokens
        if left >= max(1, max_tokens):
            return max_tokens or min(DEFAULT_MAX_TOKENS, left)
        sizes, advice = f"{prompt_tokens} tokens", "shorten the prompt"
        if max_tokens:
            sizes, advice = f"{sizes} and max_tokens {max_tokens}", f"{advice} or lower max_tokens"
        raise InvalidRequest(
            f"the prompt has {sizes}, the context window {window}: {advice}",
            code=ErrorCode.INFERENCE_CONTEXT_EXCEEDED,
            details={"prompt_tokens": prompt_tokens, "max_tokens": max_tokens, "context_window": window},
        )


def _random_stream(seed: int) -> Callable[[], float]:
    return np.random.Generator(np.random.Philox(key=seed % 2**64)).random
