"""OpenAI's completion requests and errors, as far as this engine supports them.

A field that would change the answer and is not supported is refused by name. Other fields that this
server does not know are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StringConstraints, model_validator

from pagedlab.recipes.penalties import Penalties
from pagedlab.sampling_params import SamplingParams

# Fields of OpenAI's API that would change the answer and are not supported, and the values with
# which they ask for nothing. With these values they are accepted. So is null for every field.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "web_search_options": (),
}
# Passed on to SamplingParams without a change.
PASSED_ON = (
    "temperature",
    "top_k",
    "top_p",
    "n",
    "ignore_eos",
    "seed",
    "min_p",
)

COMPLETION_TOKENS = 16  # new tokens of a completion whose request does not say, as with OpenAI
T = TypeVar("T")
# Validation of a list ends at the first error, because 100,000 errors would take seconds. A union
# begins with its list: a client reads the first error, and that of a list says more.
Some = Annotated[list[T], Field(min_length=1, max_length=2048, fail_fast=True)]
Ids = Annotated[list[StrictInt], Field(min_length=1, fail_fast=True)]
Stop = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class Described(BaseModel):
    """A JSON object. The sentence below a field is the field's description in the schema."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Body(Described):
    """A JSON object. A field that is null counts as left out; `model_extra` has unknown fields."""

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="before")
    @classmethod
    def _drop_null(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if value is not None}


class StreamOptions(Body):
    """Options of a stream."""

    include_usage: bool = False
    """Whether the stream ends with a chunk that has no choices and counts the tokens."""


class GenerationRequest(Body):
    """The parameters of both kinds of request, see `SamplingParams`.

    The temperature is 1 by default, as with OpenAI. OpenAI does not have top_k, min_p,
    repetition_penalty, ignore_eos and cache_salt.
    """

    model: str | None = None
    """The name of the model, which must be the loaded one."""
    stream: bool = False
    """Whether the answer is sent in pieces, as server-sent events."""
    stream_options: StreamOptions | None = None
    """Options of the stream; only with stream=true."""
    max_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    """The most new tokens; left out, the answer is shorter if the context has less room."""
    n: Annotated[StrictInt, Field(ge=1, le=128)] = 1
    """Answers to each prompt; more than one needs a temperature above 0."""
    stop: Annotated[list[Stop], Field(max_length=16)] | Stop | None = None
    """Strings that end an answer and are not part of it."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    """0 takes the likeliest token, 1 samples from the model's own probabilities."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Samples from the likeliest tokens whose probabilities reach this sum."""
    top_k: Annotated[StrictInt, Field(ge=-1, le=2**31)] = 0
    """Samples from this many of the likeliest tokens; 0 or -1 for all."""
    seed: Annotated[StrictInt, Field(ge=0, lt=2**63)] | None = None
    """Equal seeds give equal answers; without one, each request has another seed."""
    ignore_eos: bool = False
    """Whether an answer goes on to max_tokens, even after an end-of-text token."""
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Samples from tokens with at least this fraction of the largest probability."""
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] = 1.0
    """Makes tokens that occurred before less likely: divides their positive logits, multiplies
    their negative ones."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    """A number that is subtracted once from the logit of each token of the answer so far."""
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    """A number that is subtracted from a token's logit for each time the answer has the token."""
    logit_bias: Annotated[
        dict[int, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=300)
    ] = {}
    """Numbers that are added to logits, by token id."""
    cache_salt: Annotated[str, StringConstraints(max_length=256)] | None = None
    """Cached blocks are shared only with your own requests that have the same salt."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name, neutral in UNSUPPORTED.items():
            value = data.get(name)
            if value is not None and value not in neutral:
                message = f"{name} is not supported by this server: leave it out"
                raise ApiError(400, message, param=name)  # no ValueError: pydantic passes it on
        return {name: value for name, value in data.items() if name not in UNSUPPORTED}

    @model_validator(mode="after")
    def _options_fit(self) -> GenerationRequest:
        if self.stream_options and not self.stream:
            raise ValueError("stream_options is for streams: set stream=true, or leave it out")
        self.sampling(1)  # raises if parameters contradict each other
        return self

    @property
    def max_tokens_name(self) -> str:
        """The field by which the client limits the new tokens."""
        return "max_tokens"

    def sampling(self, default_max_tokens: int) -> SamplingParams:
        """Return the engine's parameters.

        Args:
            default_max_tokens: new tokens, at most, if the request does not say.
        """
        stop = self.stop if isinstance(self.stop, str) else tuple(self.stop or ())
        passed = {name: getattr(self, name) for name in PASSED_ON}
        passed["top_k"] = max(0, self.top_k)
        max_tokens = default_max_tokens if self.max_tokens is None else max(1, self.max_tokens)
        passed["adjust"] = self.penalties()
        return SamplingParams(max_tokens=max_tokens, stop=stop, **passed, **self.logprob_params())

    def penalties(self) -> Penalties | None:
        """Return the penalties; None if the request asks for none."""
        asked = Penalties(
            self.repetition_penalty,
            self.presence_penalty,
            self.frequency_penalty,
            self.logit_bias or None,
        )
        return None if asked == Penalties() else asked

    def logprob_params(self) -> dict[str, Any]:
        """Return the parameters of `SamplingParams` for log-probabilities."""
        raise NotImplementedError


class CompletionRequest(GenerationRequest):
    """A request for completions."""

    prompt: Some[str | Ids] | Ids | str
    """A text; a list of token ids; or a list of 1 to 2048 of these."""
    max_tokens: Annotated[StrictInt, Field(ge=0)] | None = None
    """The most new tokens, 0 only with echo=true; left out, the answer is shorter if the context
    has less room."""
    echo: bool = False
    """Whether an answer, and its log-probabilities, begin with the prompt."""
    logprobs: Annotated[StrictInt, Field(ge=0, le=5)] | None = None
    """Reports the log-probability of each token, and those of this many likeliest tokens."""

    @model_validator(mode="after")
    def _writes_something(self) -> CompletionRequest:
        if self.max_tokens == 0 and not self.echo:
            raise ValueError(
                "max_tokens must be greater than or equal to 1: 0 is allowed only with echo=true"
            )
        return self

    def logprob_params(self) -> dict[str, Any]:
        return {"logprobs": self.logprobs}

    def prompts(self) -> list[Any]:
        """Return the prompts for `LLM.add`."""
        one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return [self.prompt] if one else list(self.prompt)


class TextPart(Described):
    """A part of a message's content. Only text is supported."""

    type: Literal["text"]
    """The kind of the part."""
    text: str
    """The text."""


class Message(Described):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    """The author of the message; developer is the newer name of system."""
    content: Some[TextPart] | str | None
    """The text, whole or in parts; null is no text, as in a message that calls a tool."""
    tool_calls: Annotated[list[Any], Field(max_length=0)] | None = None
    """Tool calls are not supported, so the list is empty."""

    def written(self) -> dict[str, str]:
        """Return the message for a chat template.

        Templates call the role `developer` by its older name, `system`.
        """
        parts = self.content or ""
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatRequest(GenerationRequest):
    """A request for the next message of a chat."""

    messages: Some[Message]
    """The chat so far."""
    max_completion_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    """The newer name of max_tokens: a request has one of the two."""
    logprobs: bool = False
    """Whether the log-probability of each token is reported."""
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=20)] = 0
    """Number of likeliest tokens that are reported for each token; only with logprobs=true."""

    @property
    def max_tokens_name(self) -> str:
        return "max_completion_tokens" if self.max_completion_tokens else "max_tokens"

    def logprob_params(self) -> dict[str, Any]:
        return {"logprobs": self.top_logprobs if self.logprobs else None}

    @model_validator(mode="after")
    def _chat_options_fit(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise ValueError(
                "top_logprobs goes with logprobs=true: set it, or leave top_logprobs out"
            )
        if self.max_tokens and self.max_completion_tokens:
            raise ValueError(
                "max_tokens is the old name of max_completion_tokens: give one of them"
            )
        self.max_tokens = self.max_tokens or self.max_completion_tokens
        return self

    def prompts(self) -> list[Any]:
        """Return the chat, which is one prompt."""
        return [[message.written() for message in self.messages]]


class ErrorDetail(Described):
    """An error, for people (message) and for programs (type, param, code)."""

    message: str
    """One line: the fault, and the values that are accepted."""
    type: str = "invalid_request_error"
    """The kind of the error."""
    param: str | None = None
    """The field of the request that the error is about."""
    code: str | None = None
    """The name of the error."""


class ErrorBody(Described):
    """The body of every error."""

    error: ErrorDetail
    """The error."""


class ApiError(Exception):
    """An error that is answered in OpenAI's form.

    Args:
        status: HTTP status.
        message: one line for people.
        headers: of the answer.
        detail: type, param and code.
    """

    def __init__(
        self, status: int, message: str, headers: dict[str, str] | None = None, **detail: Any
    ) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers
        self.body = ErrorBody(error=ErrorDetail(message=message, **detail))


def invalid_request(errors: Sequence[Any]) -> ApiError:
    """Return the answer to an invalid request: where its first error is, in pydantic's words."""
    first = errors[0]
    path = ".".join(str(name) for name in first["loc"][1:])  # the first name is "body", or "query"
    message = first["msg"].removeprefix("Value error, ")
    return ApiError(400, f"{path}: {message}" if path else message, param=path or None)
