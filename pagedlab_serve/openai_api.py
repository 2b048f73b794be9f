"""OpenAI's completion requests and errors, as far as this engine supports them.

pydantic checks the fields. A field of OpenAI's API that would change the answer, and that this
engine does not have, may only ask for nothing. Other unknown fields are ignored.
"""

from __future__ import annotations

import json
import re
from itertools import takewhile
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Response
from fastapi.exceptions import RequestValidationError
from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    StringConstraints,
    model_validator,
)
from pydantic_core import PydanticCustomError
from starlette.exceptions import HTTPException

from pagedlab.recipes.penalties import Penalties
from pagedlab.sampling_params import SamplingParams

T = TypeVar("T")


def _nothing(value: Any) -> Any:
    """Refuse a list that is not empty."""
    if value:
        raise PydanticCustomError("unsupported", "this server does not support it: leave it out")
    return value


# Validation of a list ends at the first error, because 100,000 errors would take seconds.
Some = Annotated[list[T], Field(min_length=1, max_length=2048, fail_fast=True)]
Empty = Annotated[list[Any], BeforeValidator(_nothing), Field(max_length=0)]
Ids = Annotated[list[StrictInt], Field(min_length=1, fail_fast=True)]
Stop = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Bias = Annotated[float, Field(ge=-100, le=100)]
Count = Annotated[StrictInt, Field(ge=1)]
MAX_TOKENS = AliasChoices("max_tokens", "max_completion_tokens")


class Described(BaseModel):
    """A JSON object. The sentence below a field is its description in the schema."""

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


class ResponseFormat(Described):
    """The form of an answer. Only text is supported."""

    type: Literal["text"]
    """The kind of the form."""


class GenerationRequest(Body):
    """The parameters of both kinds of request, see `SamplingParams`.

    The temperature is 1 by default, as with OpenAI. OpenAI does not have top_k, min_p,
    repetition_penalty, ignore_eos and cache_salt.
    """

    model: str | None = None
    """The name of the model, which must be the loaded one."""
    stream: bool = False
    """Whether the answer is sent in pieces, as server-sent events."""
    stream_options: StreamOptions = StreamOptions()
    """Options of the stream."""
    max_tokens: Annotated[Count | None, Field(validation_alias=MAX_TOKENS)] = None
    """The most new tokens, in chats also called max_completion_tokens. The answer is shorter if the
    context has less room."""
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
    logit_bias: Annotated[dict[int, Bias], Field(max_length=300)] = {}
    """Numbers that are added to logits, by token id."""
    cache_salt: Annotated[str, StringConstraints(max_length=256)] | None = None
    """Cached blocks are shared only with your own requests that have the same salt."""

    @property
    def top(self) -> int | None:
        """Number of likeliest tokens that are reported for each token; None for no report."""
        raise NotImplementedError

    def sampling(self, default_max_tokens: int) -> SamplingParams:
        """Return the engine's parameters.

        Args:
            default_max_tokens: new tokens, at most, if the request does not say.

        Raises:
            ValueError: If parameters contradict each other.
        """
        penalties = Penalties(
            self.repetition_penalty,
            self.presence_penalty,
            self.frequency_penalty,
            self.logit_bias or None,
        )
        return SamplingParams(
            max_tokens=self.max_tokens or default_max_tokens,
            temperature=self.temperature,
            top_k=max(0, self.top_k),
            top_p=self.top_p,
            n=self.n,
            stop=self.stop or (),  # type: ignore[arg-type]
            ignore_eos=self.ignore_eos,
            seed=self.seed,
            logprobs=self.top,
            min_p=self.min_p,
            adjust=None if penalties == Penalties() else penalties,
        )


class CompletionRequest(GenerationRequest):
    """A request for completions."""

    prompt: Some[str | Ids] | Ids | str
    """A text; a list of token ids; or a list of 1 to 2048 of these."""
    echo: bool = False
    """Whether an answer, and its log-probabilities, begin with the prompt."""
    logprobs: Annotated[StrictInt, Field(ge=0, le=5)] | None = None
    """Reports the log-probability of each token, and those of this many likeliest tokens."""
    best_of: Literal[1] = 1
    """Not supported."""
    suffix: Literal[""] = ""
    """Not supported."""

    @property
    def top(self) -> int | None:
        return self.logprobs

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
    """The text, whole or in parts; null is no text."""
    tool_calls: Empty | None = None
    """Tool calls are not supported."""

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
    logprobs: bool = False
    """Whether the log-probability of each token is reported."""
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=20)] = 0
    """Number of likeliest tokens that are reported for each token; only with logprobs=true."""
    response_format: ResponseFormat = ResponseFormat(type="text")
    """Text is the only form."""
    tools: Empty = []
    """Tools are not supported."""
    functions: Empty = []
    """Functions are not supported."""

    @property
    def top(self) -> int | None:
        return self.top_logprobs if self.logprobs else None

    def prompts(self) -> list[Any]:
        """Return the chat, which is one prompt."""
        return [[message.written() for message in self.messages]]


class ErrorDetail(BaseModel):
    """An error, for people (message) and for programs (type, param, code)."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every error."""

    error: ErrorDetail


class ApiError(Exception):
    """An error that is answered in OpenAI's form.

    Args:
        status: HTTP status.
        message: one line for people: the fault, and what is accepted.
        param: the field of the request that the error is about.
        code: the name of the error, for programs.
        headers: of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        kinds = {401: "authentication_error", 429: "rate_limit_error"}
        kind = "server_error" if status >= 500 else kinds.get(status, "invalid_request_error")
        self.status, self.headers = status, headers
        self.body = ErrorBody(error=ErrorDetail(message=message, type=kind, param=param, code=code))


def _path(error: Any) -> str:
    """Return the name of a wrong field, without pydantic's names of the field's forms."""
    names = map(str, error["loc"][1:])  # the first name is "body", or "query"
    return ".".join(name for name in names if name != "str" and not re.search(r"\W", name))


def api_error(error: Exception) -> ApiError:
    """Return an error of pydantic or Starlette in OpenAI's form, mostly in their own words."""
    if isinstance(error, RequestValidationError):
        errors = error.errors()
        path = _path(errors[0])
        if not path or errors[0]["type"] == "json_invalid":
            why = errors[0].get("ctx", {}).get("error", "")
            return ApiError(
                400, f"send a JSON object, with Content-Type: application/json. {why}".rstrip()
            )
        # Each form of a field that has several forms has an error of its own.
        same = takewhile(lambda each: _path(each) == path, errors)
        words = dict.fromkeys(each["msg"] for each in same)
        return ApiError(400, f"{path}: {' or '.join(words)}", path)
    if isinstance(error, HTTPException):
        message = f"{error.detail}: /docs lists every path, and what it takes"
        return ApiError(error.status_code, message, headers=dict(error.headers or {}))
    assert isinstance(error, ApiError)
    return error


def error_response(error: Exception) -> Response:
    """Return the answer for an `ApiError`, or an error of pydantic or Starlette."""
    known = api_error(error)
    # Escaped to ASCII: the message may quote characters that UTF-8 cannot encode.
    content = json.dumps(known.body.model_dump())
    return Response(content, known.status, known.headers, media_type="application/json")
