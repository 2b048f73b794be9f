"""Token ids of what a client sends, made in a thread of its own: a text of a megabyte delays no
other stream.
"""

import asyncio
import copy
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

from pagedlab.llm import Prompt
from pagedlab.model import Model
from pagedlab.serving.openai_api import ApiError
from pagedlab.validation import valid_text

Messages = list[dict[str, str]]


class TooLong(ValueError):
    """A prompt does not fit into the model's context, or not together with the new tokens that are
    asked for.
    """


class Encoder:
    """Makes token ids of prompts in one thread.

    Args:
        model: whose tokenizer is copied: settings of a shared one could change while it runs.
        plain_content: a special token that is written out in a chat message is plain text.
    """

    def __init__(self, model: Model, plain_content: bool = False) -> None:
        self._model = copy.copy(model)
        self._model.tokenizer = copy.deepcopy(model.tokenizer)
        self._plain_content = plain_content
        added = model.tokenizer.backend_tokenizer.get_added_tokens_decoder().values()
        self._special = [token.content for token in added]
        self._thread = ThreadPoolExecutor(1, "pagedlab-tokens")

    async def encode(self, prompts: Sequence[Prompt], room: int = 1) -> list[list[int]]:
        """Token ids of each prompt.

        `ApiError` for the first that the model cannot continue by `room` tokens.
        """
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, self._encode, prompts, room
        )

    def _encode(self, prompts: Sequence[Prompt], room: int) -> list[list[int]]:
        done = []
        for i, prompt in enumerate(prompts):
            is_chat = any(isinstance(message, dict) for message in prompt[:1])
            try:
                done.append(self._ids(prompt, is_chat, room))
            except (
                Exception
            ) as error:  # a chat template may raise anything, and it is about this prompt alone
                said = f"prompt {i}: {error}" if len(prompts) > 1 else str(error)
                code = "context_length_exceeded" if isinstance(error, TooLong) else None
                raise ApiError(
                    400, said, param="messages" if is_chat else "prompt", code=code
                ) from None
        return done

    def _ids(self, prompt: Any, is_chat: bool, room: int) -> list[int]:
        if is_chat:
            prompt = self._chat_ids(prompt)
        elif isinstance(prompt, str):
            valid_text("the prompt", prompt)
            prompt = self._tokenize(prompt, add_special_tokens=True)
        most = self._model.max_length
        if len(prompt) + room > most:
            more = f", {room} more are asked for," if room > 1 else ""
            takes = f"{self._model.name} takes {most}, new ones included"
            raise TooLong(f"the prompt has {len(prompt)} tokens{more} and {takes}: shorten it")
        return self._model.checked_ids(prompt)

    def _chat_ids(self, messages: Messages) -> list[int]:
        if self._plain_content and any(
            self._has_special(message["content"]) for message in messages
        ):
            return self._plain_chat_ids(messages)
        text = self._render(messages)
        valid_text("the prompt", text)
        return self._tokenize(text)

    def _plain_chat_ids(self, messages: Messages) -> list[int]:
        """Tokens of a chat: special ones come from the template alone, never from a message's
        content.

        The template is rendered with a placeholder for each content. `ValueError` if it does more
        with the contents than to put each of them into its place once.
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
