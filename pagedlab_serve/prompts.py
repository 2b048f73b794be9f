"""Token ids of prompts. They are made outside of the engine's thread and of the event loop.

Tokenizing runs in a thread of its own, so a text of a megabyte delays no stream.
"""

import asyncio
import copy
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from pagedlab.engine import Prompt
from pagedlab.model import Model
from pagedlab_serve.logprobs import Spelling
from pagedlab_serve.openai_api import ApiError


class Encoder:
    """Makes token ids of prompts in one thread.

    Args:
        model: its tokenizer is copied, because settings of a shared one could change during a call.
    """

    def __init__(self, model: Model) -> None:
        self._model = copy.copy(model)
        self._model.tokenizer = copy.deepcopy(model.tokenizer)
        self.vocab_size = model.vocab_size
        self.spell = Spelling(self._model.tokenizer)
        self._thread = ThreadPoolExecutor(1, "pagedlab-tokens")

    async def encode(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """Return the token ids of each prompt: a text, a list of token ids, or a chat.

        Raises:
            ValueError: If a prompt cannot be encoded.
            ApiError: If a prompt is too long.
        """
        loop = asyncio.get_running_loop()
        return [await loop.run_in_executor(self._thread, self._encode, one) for one in prompts]

    async def text(self, prompt: str | list[int]) -> str:
        """Return the text of a prompt. Of token ids, it has no special tokens."""
        if isinstance(prompt, str):
            return prompt
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._model.decode, prompt)

    def _encode(self, prompt: Prompt) -> list[int]:
        ids = self._model.encode(prompt)
        most = self._model.max_length
        if len(ids) >= most:
            takes = f"{self._model.name} takes {most}, new ones included"
            message = f"the prompt has {len(ids)} tokens and {takes}: shorten it"
            raise ApiError(400, message, code="context_length_exceeded")
        return ids
