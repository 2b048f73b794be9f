"""OpenAI's completion requests and errors, as far as this engine has them. What it has not is refused by name."""

from __future__ import annotations

from itertools import takewhile
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StringConstraints, model_validator

from pagedlab.sampling import SamplingParams

# Parameters that are not built. With the value given, which asks for nothing, they are accepted.
NEUTRAL: dict[str, Any] = {
    "best_of": 1,
    "echo": False,
    "frequency_penalty": 0,
    "logit_bias": {},
    "logprobs": False,
    "modalities": ["text"],
    "parallel_tool_calls": True,
    "presence_penalty": 0,
    "response_format": {"type": "text"},
    "service_tier": "auto",
    "store": False,
    "suffix": "",
    "tools": [],
    "tool_choice": "none",
    "top_logprobs": 0,
}
IGNORED = ("metadata", "user", "safety_identifier", "prompt_cache_key")  # labels for the provider's own books

Stop = Annotated[str, StringConstraints(min_length=1, max_length=256)]


def _is_neutral(name: str, value: Any) -> bool:
    """Whether the parameter asks for nothing. Of a completion, logprobs=0 asks for something, though 0 == False."""
    same_kind = isinstance(value, bool) == isinstance(NEUTRAL.get(name), bool)
    return name in NEUTRAL and same_kind and value == NEUTRAL[name]


class StreamOptions(BaseModel):
    """include_usage: a last chunk without choices that counts the tokens."""

    model_config = ConfigDict(extra="forbid")

    include_usage: bool = False


class GenerationRequest(BaseModel):
    """What both kinds of request share. temperature is 1 unless given, as with OpenAI; seed makes draws repeatable.

    Three parameters are ours: top_k and ignore_eos as in `SamplingParams`; cache_salt, because of which blocks are
    shared only with your own requests under the same salt.
    """

    model_config = ConfigDict(extra="forbid")

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    n: Annotated[StrictInt, Field(ge=1, le=128)] = 1
    stop: Stop | Annotated[list[Stop], Field(max_length=4)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[StrictInt, Field(ge=0, le=2**31)] = 0
    seed: Annotated[StrictInt, Field(ge=0, lt=2**63)] | None = None
    ignore_eos: bool = False
    cache_salt: Annotated[str, StringConstraints(max_length=256)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_what_asks_for_nothing(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {
            name: value
            for name, value in data.items()
            if value is not None and name not in IGNORED and not _is_neutral(name, value)
        }

    @model_validator(mode="after")
    def _options_fit(self) -> GenerationRequest:
        if self.stream_options and not self.stream:
            raise ValueError("stream_options is for streams: set stream=true, or leave it out")
        return self

    def sampling(self, default_max_tokens: int) -> SamplingParams:
        """The engine's parameters; `ValueError` for what makes no sense together."""
        return SamplingParams(
            max_tokens=self.max_tokens or default_max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            n=self.n,
            stop=self.stop if isinstance(self.stop, str) else tuple(self.stop or ()),
            ignore_eos=self.ignore_eos,
            seed=self.seed,
        )


class CompletionRequest(GenerationRequest):
    """prompt: a text, a list of token ids, or a list of several of either kind."""

    prompt: (
        str
        | Annotated[list[StrictInt], Field(min_length=1)]
        | Annotated[list[str | list[StrictInt]], Field(min_length=1)]
    )

    def prompts(self) -> list[Any]:
        """One or several prompts for `LLM.add`."""
        one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return [self.prompt] if one else list(self.prompt)


class TextPart(BaseModel):
    """A part of a message's content; only text is understood."""

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """A turn of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(min_length=1)]
    name: str | None = None


class ChatRequest(GenerationRequest):
    """messages: the chat so far. max_completion_tokens is the newer name of max_tokens."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[StrictInt, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _one_limit(self) -> ChatRequest:
        if self.max_tokens and self.max_completion_tokens:
            raise ValueError("max_tokens is the old name of max_completion_tokens: give one of them")
        self.max_tokens = self.max_tokens or self.max_completion_tokens
        return self

    def prompts(self) -> list[Any]:
        """The chat as the one prompt that it is."""

        def text(content: str | list[TextPart]) -> str:
            return content if isinstance(content, str) else "".join(part.text for part in content)

        roles = {"developer": "system"}  # OpenAI's newer name; no chat template knows it
        return [[{"role": roles.get(m.role, m.role), "content": text(m.content)} for m in self.messages]]


class ErrorDetail(BaseModel):
    """What went wrong, for people (message) and for programs (type, param, code)."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """The body of every answer that is not a success."""

    error: ErrorDetail


class ApiError(Exception):
    """An error to be answered in OpenAI's shape."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers
        self.body = ErrorBody(error=ErrorDetail(message=message, type=type, param=param, code=code))


def explain_invalid(errors: Any) -> tuple[str, str | None]:
    """FastAPI's validation errors as one sentence, and the parameter that the first is about, such as "messages.0"."""
    first, place = errors[0], _place(errors[0])
    param = ".".join(place) or None
    if first["type"] == "json_invalid":
        return f"the body is not valid JSON: {first.get('ctx', {}).get('error', first['msg'])}", None
    if first["type"] == "extra_forbidden":
        return f"{param} is not supported by this server: leave it out", param
    # A union complains once for each form that a value may have.
    about = [error["msg"].removeprefix("Value error, ") for error in errors if _place(error)[: len(place)] == place]
    said = ", or ".join(dict.fromkeys(one[0].lower() + one[1:] for one in about))
    if param:
        return f"{param}: {said}", param
    return said if first["type"] == "value_error" else f"send a JSON object as application/json: {said}", None


def _place(error: Any) -> list[str]:
    """Where in the body an error is, without pydantic's names for the members of a union ("str", "list[int]")."""
    parts = [str(part) for part in error["loc"] if part != "body"]
    return list(takewhile(lambda part: part not in ("str", "int") and part.replace("_", "a").isalnum(), parts))
