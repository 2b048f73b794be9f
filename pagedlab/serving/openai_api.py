"""OpenAI's completion requests and errors, as far as this engine has them.

What it has not is refused by name.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StringConstraints, model_validator

from pagedlab.sampling_params import SamplingParams

# Parameters of OpenAI and vLLM that are not supported, and the values with which they ask for
# nothing. With these values they are accepted. So is null for every parameter.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "add_special_tokens": (True,),  # of a completion; a chat's template writes them
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "detokenize": (True,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_p": (0,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "presence_penalty": (0,),
    "priority": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "return_tokens_as_token_ids": (False,),
    "service_tier": ("auto", "default"),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "stop_token_ids": ([],),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none",),
    "tools": ([],),
    "top_k": (-1,),
    "top_logprobs": (0,),
    "use_beam_search": (False,),
}
# labels for the provider
IGNORED = {
    "metadata",
    "prompt_cache_key",
    "request_id",
    "safety_identifier",
    "user",
}
PENALTIES = (
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "stop_token_ids",
)
# to SamplingParams, as they are
PASSED_ON = (
    "temperature",
    "top_k",
    "top_p",
    "n",
    "ignore_eos",
    "seed",
    *PENALTIES,
)

T = TypeVar("T")
# Whoever sends a long list hears of the first thing wrong with it: to collect 100,000 complaints
# takes seconds.
Some = Annotated[list[T], Field(min_length=1, max_length=2048, fail_fast=True)]
Ids = Annotated[list[StrictInt], Field(min_length=1, fail_fast=True)]
Stop = Annotated[str, StringConstraints(min_length=1, max_length=256)]


def _is_among(value: Any, neutral: tuple[Any, ...]) -> bool:
    """Whether the value asks for nothing.

    Of a completion, logprobs=0 asks for something, though 0 == False.
    """
    return any(isinstance(value, bool) == isinstance(one, bool) and value == one for one in neutral)


class Body(BaseModel):
    """An object that has no other names than these, but for those that ask for nothing."""

    model_config = ConfigDict(extra="forbid")
    neutral: ClassVar[dict[str, tuple[Any, ...]]] = NEUTRAL

    @model_validator(mode="before")
    @classmethod
    def _drop_what_asks_for_nothing(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = cls.neutral.keys() & data.keys()
        nothing = {name for name in known if _is_among(data[name], cls.neutral[name])} | IGNORED
        asked = {
            name: value for name, value in data.items() if value is not None and name not in nothing
        }
        # the first is enough to hear of
        beyond = [name for name in asked if name not in cls.model_fields][1:]
        return {name: asked[name] for name in asked.keys() - beyond}


class StreamOptions(Body):
    """include_usage: a last chunk without choices that counts the tokens."""

    include_usage: bool = False


class GenerationRequest(Body):
    """What both kinds of request share. temperature is 1 unless given, as with OpenAI; seed makes
    draws repeatable.

    Not OpenAI's are top_k, min_p, repetition_penalty, stop_token_ids and ignore_eos, as in
    `SamplingParams`, and cache_salt, because of which blocks are shared only with your own requests
    under the same salt.
    """

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    n: Annotated[StrictInt, Field(ge=1, le=128)] = 1
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[StrictInt, Field(ge=0, le=2**31)] = 0
    seed: Annotated[StrictInt, Field(ge=0, lt=2**63)] | None = None
    ignore_eos: bool = False
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] = 1.0
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    logit_bias: Annotated[
        dict[int, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=300)
    ] = {}
    stop_token_ids: Annotated[list[StrictInt], Field(max_length=300)] = []
    cache_salt: Annotated[str, StringConstraints(max_length=256)] | None = None

    @model_validator(mode="after")
    def _options_fit(self) -> GenerationRequest:
        if self.stream_options and not self.stream:
            raise ValueError("stream_options is for streams: set stream=true, or leave it out")
        self.sampling(1)  # raises what makes no sense together
        return self

    def sampling(self, default_max_tokens: int) -> SamplingParams:
        """The engine's parameters."""
        stop = self.stop if isinstance(self.stop, str) else tuple(self.stop or ())
        passed = {name: getattr(self, name) for name in PASSED_ON}
        max_tokens = default_max_tokens if self.max_tokens is None else max(1, self.max_tokens)
        return SamplingParams(max_tokens=max_tokens, stop=stop, **passed, **self.told())

    def told(self) -> dict[str, Any]:
        """Which log-probabilities are asked for, as `SamplingParams` has it."""
        raise NotImplementedError


class CompletionRequest(GenerationRequest):
    """prompt: a text, a list of token ids, or a list of several of either kind. echo: the answer
    begins with it, and so do the log-probabilities.

    Then max_tokens may be 0.
    """

    prompt: str | Ids | Some[str | Ids]
    max_tokens: Annotated[StrictInt, Field(ge=0)] | None = None
    echo: bool = False
    logprobs: Annotated[StrictInt, Field(ge=0, le=5)] | None = None

    @model_validator(mode="after")
    def _writes_something(self) -> CompletionRequest:
        if self.max_tokens == 0 and not self.echo:
            raise ValueError(
                "max_tokens must be greater than or equal to 1: 0 goes with echo=true only"
            )
        return self

    def told(self) -> dict[str, Any]:
        return {"logprobs": self.logprobs, "prompt_logprobs": self.logprobs if self.echo else None}

    def prompts(self) -> list[Any]:
        """One or several prompts for `LLM.add`."""
        one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return [self.prompt] if one else list(self.prompt)


class TextPart(BaseModel):
    """A part of a message's content; only text is understood."""

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """A turn of a chat.

    Who has called a tool may have said nothing; calls themselves are not understood.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Some[TextPart] | None
    tool_calls: Annotated[list[Any], Field(max_length=0)] | None = None

    def written(self) -> dict[str, str]:
        """The message as chat templates know it.

        They have no `developer`, which is OpenAI's newer name.
        """
        parts = self.content or ""
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatRequest(GenerationRequest):
    """messages: the chat so far. max_completion_tokens is the newer name of max_tokens."""

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = NEUTRAL | {"add_special_tokens": (False,)}
    messages: Some[Message]
    max_completion_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=20)] = 0

    def told(self) -> dict[str, Any]:
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
        """The chat as the one prompt that it is."""
        return [[message.written() for message in self.messages]]


class ErrorDetail(BaseModel):
    """What went wrong, for people (message) and for programs (type, param, code)."""

    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """The body of every answer that is not a success."""

    error: ErrorDetail


class ApiError(Exception):
    """An error to be answered in OpenAI's shape. detail: type, param and code."""

    def __init__(
        self, status: int, message: str, headers: dict[str, str] | None = None, **detail: Any
    ) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers
        self.body = ErrorBody(error=ErrorDetail(message=message, **detail))


def explain_invalid(errors: Any) -> tuple[str, str | None]:
    """FastAPI's validation errors as one sentence, and the parameter that the first is about, such
    as "messages.0".
    """
    first, place = errors[0], _place(errors[0])
    param = ".".join(place) or None
    if first["type"] == "json_invalid":
        return (
            f"the body is not valid JSON: {first.get('ctx', {}).get('error', first['msg'])}",
            None,
        )
    if first["type"] == "extra_forbidden":
        return f"{param} is not supported by this server: leave it out", param
    # A union complains once for each form that a value may have.
    about = [
        error["msg"].removeprefix("Value error, ")
        for error in errors
        if _place(error)[: len(place)] == place
    ]
    said = ", or ".join(dict.fromkeys(one[0].lower() + one[1:] for one in about))
    if param:
        return f"{param}: {said}", param
    return said if first[
        "type"
    ] == "value_error" else f"send a JSON object as application/json: {said}", None


def _place(error: Any) -> list[str]:
    """Where in the body an error is, without pydantic's names for the members of a union ("str",
    "list[int]").
    """
    parts = [str(part) for part in error["loc"] if part != "body"]
    return list(
        takewhile(
            lambda part: part not in ("str", "int") and part.replace("_", "a").isalnum(), parts
        )
    )
