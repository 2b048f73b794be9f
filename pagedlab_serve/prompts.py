"""The token ids of prompts.

A thread makes them that does nothing else, so a text of a megabyte delays no stream.
"""

import asyncio
import copy
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from pagedlab.arguments import valid_text
from pagedlab.engine import Prompt
from pagedlab.model import Model
from pagedlab_serve.logprobs import Echo, Spelling, echo_text, echo_tokens
from pagedlab_serve.openai_api import ApiError

Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Room:
    """The slots for new tokens that the model's context must have after each prompt.

    Args:
        tokens: number of slots.
        field: the field of the request that asks for them.
    """

    tokens: int = 1
    field: str = "max_tokens"


class TooLong(ValueError):
    """A prompt does not fit into the model's context."""


class TooManyNewTokens(ValueError):
    """A prompt fits into the model's context, and not with the new tokens that are asked for."""


class Encoder:
    """Makes token ids of prompts in one thread.

    Args:
        model: its tokenizer is copied, because settings of a shared one could change during a call.
        plain_content: special tokens in the text of a chat message are plain text.
    """

    def __init__(self, model: Model, plain_content: bool = False) -> None:
        self._model = copy.copy(model)
        self._model.tokenizer = copy.deepcopy(model.tokenizer)
        self.vocab_size = model.vocab_size
        self._plain_content = plain_content
        added = model.tokenizer.backend_tokenizer.get_added_tokens_decoder().values()
        self._special = [token.content for token in added]
        self.spell = Spelling(self._model.tokenizer)
        self._thread = ThreadPoolExecutor(1, "pagedlab-tokens")

    async def encode(
        self,
        prompts: Sequence[Prompt],
        room: Room = Room(),
    ) -> list[list[int]]:
        """Return the token ids of each prompt.

        Args:
            prompts: texts, lists of token ids, or chats.
            room: the new tokens that must fit after each prompt.

        Raises:
            ApiError: For the first prompt that is invalid or too long.
        """
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, self._encode, prompts, room
        )

    async def echo(self, prompts: Sequence[str | list[int]]) -> list[Echo]:
        """Return the echo of each prompt, which is a valid text or token ids."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._echo, prompts)

    def _echo(self, prompts: Sequence[str | list[int]]) -> list[Echo]:
        tokenizer = self._model.tokenizer
        return [
            echo_text(tokenizer, prompt)
            if isinstance(prompt, str)
            else echo_tokens(self.spell, tokenizer, prompt)
            for prompt in prompts
        ]

    def _encode(self, prompts: Sequence[Prompt], room: Room) -> list[list[int]]:
        done = []
        for i, prompt in enumerate(prompts):
            is_chat = any(isinstance(message, dict) for message in prompt[:1])
            try:
                done.append(self._ids(prompt, is_chat, room))
            except Exception as error:  # a chat template may raise anything
                message = f"prompt {i}: {error}" if len(prompts) > 1 else str(error)
                param = "messages" if is_chat else "prompt"
                if isinstance(error, TooManyNewTokens):
                    param = room.field
                is_length = isinstance(error, (TooLong, TooManyNewTokens))
                code = "context_length_exceeded" if is_length else None
                raise ApiError(400, message, param=param, code=code) from None
        return done

    def _ids(self, prompt: Any, is_chat: bool, room: Room) -> list[int]:
        if is_chat:
            prompt = self._chat_ids(prompt)
        elif isinstance(prompt, str):
            valid_text("the prompt", prompt)
            prompt = self._tokenize(prompt, add_special_tokens=True)
        most = self._model.max_length
        takes = f"{self._model.name} takes {most}, new ones included"
        if len(prompt) >= most:
            raise TooLong(f"the prompt has {len(prompt)} tokens and {takes}: shorten it")
        if len(prompt) + room.tokens > most:
            raise TooManyNewTokens(
                f"the prompt has {len(prompt)} tokens, {room.tokens} more are asked for, and "
                f"{takes}: lower {room.field} to {most - len(prompt)} at most"
            )
        return self._model.checked_ids(prompt)

    def _chat_ids(self, messages: Messages) -> list[int]:
        has_special = any(self._has_special(message["content"]) for message in messages)
        if self._plain_content and has_special:
            return self._plain_chat_ids(messages)
        text = self._render(messages)
        valid_text("the prompt", text)
        return self._tokenize(text)

    def _plain_chat_ids(self, messages: Messages) -> list[int]:
        """Return the tokens of a chat whose special tokens are all from the template.

        The template is rendered with a placeholder for the content of each message.

        Raises:
            ValueError: If the template changes a content, or does not insert it exactly once.
        """
        contents = [message["content"] for message in messages]
        marks = [f"content{uuid4().hex}" for _ in messages]
        rest = self._render(
            [message | {"content": mark} for message, mark in zip(messages, marks, strict=True)]
        )
        ids = list[int]()
        whole = ""
        for content, mark in zip(contents, marks, strict=True):
            before, found, rest = rest.partition(mark)
            whole += before + (content if found else "")
            ids += self._tokenize(before)
            ids += self._tokenize(content, split_special_tokens=True)
        if whole + rest != self._render(messages):
            raise ValueError(
                "the chat template changes this message, so its special tokens cannot be made "
                "plain text"
            )
        valid_text("the prompt", whole)
        return ids + self._tokenize(rest)

    def _has_special(self, content: str) -> bool:
        return any(special in content for special in self._special)

    def _render(self, messages: Messages) -> str:
        return self._model.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )

    def _tokenize(self, text: str, **options: Any) -> list[int]:
        if not text:
            return []
        options = {"add_special_tokens": False, "verbose": False} | options
        return list(self._model.tokenizer(text, **options)["input_ids"])
