"""From what a client sent to token ids, in a thread of its own: a text of a megabyte holds up nobody's stream."""

import asyncio
import copy
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from math import inf
from typing import Any

from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel

from pagedlab.llm import Prompt
from pagedlab.model import Model
from pagedlab.serving.openai_api import ApiError
from pagedlab.validation import valid_text

NFC_SHRINKS = 4  # characters at most that become one: no canonical decomposition in Unicode is longer
KEEP_ALL = {b"Sequence", b"Split", b"Digits", b"ByteLevel"}  # what comes before the model and drops no character


class TooLong(ValueError):
    """A prompt does not fit into the model's context, or not together with the new tokens that are asked for."""


def longest_token(tokenizer: Any) -> float:
    """No token stands for more characters of a normalised text than this; infinity if the vocabulary does not say.

    A byte-level vocabulary says it if it has all bytes and nothing of the text is dropped before it: it spells a token
    with a character for each byte, and a text has at least as many bytes as characters.
    """
    backend = tokenizer.backend_tokenizer
    vocabulary, added = backend.get_vocab(), backend.get_added_tokens_decoder().values()
    before = backend.pre_tokenizer.__getstate__() if backend.pre_tokenizer else b""
    says = (
        isinstance(backend.model, BPE)
        and vocabulary.keys() >= set(ByteLevel.alphabet())
        and isinstance(backend.normalizer, (NFC, type(None)))
        and {b"ByteLevel"} <= set(re.findall(rb'"type":"(\w+)"', before)) <= KEEP_ALL
        and b'"Removed"' not in before
        and not any(token.lstrip or token.rstrip for token in added)  # these take any number of spaces with them
    )
    return max(map(len, vocabulary)) if says else inf


class Encoder:
    """Makes token ids of prompts in one thread, with a tokenizer of its own: who shares one shares its settings."""

    def __init__(self, model: Model) -> None:
        self._model = copy.copy(model)
        self._model.tokenizer = copy.deepcopy(model.tokenizer)
        self._longest = longest_token(model.tokenizer)
        self._thread = ThreadPoolExecutor(1, "pagedlab-tokens")

    async def encode(self, prompts: Sequence[Prompt], room: int = 1) -> list[list[int]]:
        """Token ids of each prompt. `ApiError` for the first that the model cannot continue by `room` tokens."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._encode, prompts, room)

    def _encode(self, prompts: Sequence[Prompt], room: int) -> list[list[int]]:
        done = []
        for i, prompt in enumerate(prompts):
            chat = any(isinstance(message, dict) for message in prompt[:1])
            try:
                done.append(self._ids(prompt, chat, room))
            except Exception as error:  # a chat template may raise anything, and it is about this prompt alone
                said = f"prompt {i}: {error}" if len(prompts) > 1 else str(error)
                code = "context_length_exceeded" if isinstance(error, TooLong) else None
                raise ApiError(400, said, param="messages" if chat else "prompt", code=code) from None
        return done

    def _ids(self, prompt: Any, chat: bool, room: int) -> list[int]:
        most, name, tokenizer = self._model.max_length, self._model.name, self._model.tokenizer
        if chat:
            prompt = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
        if isinstance(prompt, str):
            characters = self._longest * (1 if prompt.isascii() else NFC_SHRINKS)
            if len(prompt) > most * characters:
                takes = f"{name} takes {most:,} tokens, none of which stands for more than {characters}"
                raise TooLong(f"the prompt has {len(prompt):,} characters and {takes}: shorten it")
            valid_text("the prompt", prompt)
            prompt = tokenizer(prompt, add_special_tokens=not chat, verbose=False)["input_ids"]
        if len(prompt) + room > most:
            more = f", {room} more are asked for," if room > 1 else ""
            takes = f"{name} takes {most}, new ones included"
            raise TooLong(f"the prompt has {len(prompt)} tokens{more} and {takes}: shorten it")
        return self._model.checked_ids(prompt)
