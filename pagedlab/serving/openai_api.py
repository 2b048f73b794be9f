"""OpenAI's completion requests and errors, as far as this engine supports them.

A parameter that is not supported is refused by name.
"""

from __future__ import annotations

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
# Labels for a provider, which change nothing.
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
# Passed on to SamplingParams without a change.
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
# Validation of a list ends at the first error, because 100,000 errors would take seconds.
Some = Annotated[list[T], Field(min_length=1, max_length=2048, fail_fast=True)]
Ids = Annotated[list[StrictInt], Field(min_length=1, fail_fast=True)]
Stop = Annotated[str, StringConstraints(min_length=1, max_length=256)]


def _is_among(value: Any, neutral: tuple[Any, ...]) -> bool:
    """Return whether the value is neutral, that is, changes nothing.

    False is not 0: logprobs=0 of a completion asks for log-probabilities.
    """
    is_bool = isinstance(value, bool)
    return any(value == one and is_bool == isinstance(one, bool) for one in neutral)


class Body(BaseModel):
    """A JSON object. Unknown names are refused, unless their value is neutral."""

    model_config = ConfigDict(extra="forbid")
    neutral: ClassVar[dict[str, tuple[Any, ...]]] = NEUTRAL

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral_values(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = cls.neutral.keys() & data.keys()
        neutral = {name for name in known if _is_among(data[name], cls.neutral[name])}
        asked = {}
        num_unknown = 0
        for name, value in data.items():
            if value is None or name in neutral or name in IGNORED:
                continue
            if name not in cls.model_fields:
                num_unknown += 1
                if num_unknown > 1:  # one unknown name is enough for an error
                    continue
            asked[name] = value
        return asked


class StreamOptions(Body):
    """Options of a stream.

    Args:
        include_usage: the stream ends with a chunk that has no choices and counts the tokens.
    """

    include_usage: bool = False


class GenerationRequest(Body):
    """The parameters of both kinds of request, see `SamplingParams`.

    The temperature is 1 by default, as with OpenAI. OpenAI does not have top_k, min_p,
    repetition_penalty, stop_token_ids, ignore_eos and cache_salt. With a cache_salt, blocks are
    shared only with your own requests that have the same salt.
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
        self.sampling(1)  # raises if parameters contradict each other
        return self

    def sampling(self, default_max_tokens: int) -> SamplingParams:
        """Return the engine's parameters.

        Args:
            default_max_tokens: new tokens, at most, if the request does not say.
        """
        stop = self.stop if isinstance(self.stop, str) else tuple(self.stop or ())
        passed = {name: getattr(self, name) for name in PASSED_ON}
        max_tokens = default_max_tokens if self.max_tokens is None else max(1, self.max_tokens)
        return SamplingParams(max_tokens=max_tokens, stop=stop, **passed, **self.logprob_params())

    def logprob_params(self) -> dict[str, Any]:
        """Return the parameters of `SamplingParams` for log-probabilities."""
        raise NotImplementedError


class CompletionRequest(GenerationRequest):
    """A request for completions.

    Args:
        prompt: a text, a list of token ids, or a list of several of either kind.
        echo: the answer, and its log-probabilities, begin with the prompt. Then max_tokens may
            be 0.
        logprobs: number of likeliest tokens that are reported for each token.
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

    def logprob_params(self) -> dict[str, Any]:
        return {"logprobs": self.logprobs, "prompt_logprobs": self.logprobs if self.echo else None}

    def prompts(self) -> list[Any]:
        """Return the prompts for `LLM.add`."""
        one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return [self.prompt] if one else list(self.prompt)


class TextPart(BaseModel):
    """A part of a message's content. Only text is supported."""

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """A message of a chat.

    The content may be null, as in a message that calls a tool. Tool calls are not supported.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Some[TextPart] | None
    tool_calls: Annotated[list[Any], Field(max_length=0)] | None = None

    def written(self) -> dict[str, str]:
        """Return the message for a chat template.

        Templates call the role `developer` by its older name, `system`.
        """
        parts = self.content or ""
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatRequest(GenerationRequest):
    """A request for the next message of a chat.

    Args:
        messages: the chat.
        max_completion_tokens: the newer name of max_tokens.
        logprobs: report log-probabilities.
        top_logprobs: number of likeliest tokens that are reported for each token.
    """

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = NEUTRAL | {"add_special_tokens": (False,)}
    messages: Some[Message]
    max_completion_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=20)] = 0

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


class ErrorDetail(BaseModel):
    """An error, for people (message) and for programs (type, param, code)."""

    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """The body of every error."""

    error: ErrorDetail


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


def explain_invalid(errors: Any) -> tuple[str, str | None]:
    """Explain FastAPI's validation errors.

    Args:
        errors: of one request.

    Returns:
        One sentence, and the parameter of the first error, such as "messages.0"; None if the error
        is not about a parameter.
    """
    first = errors[0]
    place = _place(first)
    param = ".".join(place) or None
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", first["msg"])
        return f"the body is not valid JSON: {reason}", None
    if first["type"] == "extra_forbidden":
        return f"{param} is not supported by this server: leave it out", param
    # A union has one error for each form that a value may have.
    messages = []
    for error in errors:
        if _place(error)[: len(place)] == place:
            message = error["msg"].removeprefix("Value error, ")
            messages.append(message[0].lower() + message[1:])
    explanation = ", or ".join(dict.fromkeys(messages))
    if param:
        return f"{param}: {explanation}", param
    if first["type"] == "value_error":
        return explanation, None
    return f"send a JSON object as application/json: {explanation}", None


def _place(error: Any) -> list[str]:
    """Return the names that lead to an error in the body.

    The list ends before pydantic's names for the members of a union, "str" or "list[int]".
    """
    place = []
    for part in error["loc"]:
        name = str(part)
        if name == "body":
            continue
        if name in ("str", "int") or not name.replace("_", "a").isalnum():
            break
        place.append(name)
    return place
