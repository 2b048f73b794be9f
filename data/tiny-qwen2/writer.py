"""The larger Qwen that writes the corpus: many rows at once, each at its own position, refilled as they end.

A small continuous-batching loop for a GPU. A row whose answer ends takes the next prompt; prompt tokens pass through
the same one-token step as written ones, so that one CUDA graph does everything.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import torch
from plans import Plan
from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer

END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"


def rows_attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    scaling: float = 1.0,
    **kwargs: Any,
) -> Any:
    """One new token a row: store its key and value at the row's position, then attend to all up to there."""
    rows = kwargs["rows"]
    keys, values = rows.keys[module.layer_idx], rows.values[module.layer_idx]
    keys[rows.every, :, rows.position] = key[:, :, 0]
    values[rows.every, :, rows.position] = value[:, :, 0]
    batch, heads, _, width = query.shape
    grouped = query.view(
        batch, keys.shape[1], heads // keys.shape[1], width
    )  # the heads that share a KV head
    out = torch.nn.functional.scaled_dot_product_attention(
        grouped, keys, values, attn_mask=rows.mask, scale=scaling
    )
    return out.reshape(batch, 1, heads, width), None


class Writer:
    """Rows of one model, each writing its own text. `step` moves every row on by one token."""

    def __init__(
        self, folder: str, num_rows: int, length: int, device: str, top_k: int, top_p: float
    ) -> None:
        AttentionInterface.register("rows", rows_attention)
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self.tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        model = (
            AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, attn_implementation="rows", trust_remote_code=False
            )
            .to(device)
            .eval()
        )
        torch.set_grad_enabled(False)
        self.model, config = model.model, model.config
        self.top_k, self.top_p, self.device, self.length = top_k, top_p, device, length
        # Only tokens of plain printable English can be written: no markup, no code signs, no other scripts.
        allowed = re.compile(r"[ \n]*[A-Za-z0-9 .,;:!?'\"()\n-]+")
        pieces = self.tokenizer.batch_decode([[i] for i in range(len(self.tokenizer))])
        ids = [
            i for i, piece in enumerate(pieces) if allowed.fullmatch(piece) and "--" not in piece
        ]
        ids += [self.tokenizer.convert_tokens_to_ids(STOP)]
        self.written_ids = torch.tensor(ids, device=device)
        self.head = model.lm_head.weight.detach()[self.written_ids].T.contiguous()
        self.stop_id = ids[-1]
        kv_heads, width = (
            config.num_key_value_heads,
            config.hidden_size // config.num_attention_heads,
        )
        shape = (num_rows, kv_heads, length, width)
        self.keys = [
            torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_hidden_layers)
        ]
        self.values = [
            torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_hidden_layers)
        ]
        self.every = torch.arange(num_rows, device=device)
        self.columns = torch.arange(length, device=device)
        self.tokens = torch.zeros(num_rows, length, dtype=torch.long, device=device)
        self.position = torch.zeros(num_rows, dtype=torch.long, device=device)
        self.prompt_length = torch.ones(num_rows, dtype=torch.long, device=device)
        self.temperature = torch.ones(num_rows, device=device)
        self.done = torch.ones(num_rows, dtype=torch.bool, device=device)
        self.mask = torch.zeros(num_rows, 1, 1, length, dtype=torch.bool, device=device)

    def step(self) -> None:
        """One token for every row. Only tensors of fixed shape, so that a CUDA graph can replay it."""
        torch.le(self.columns, self.position[:, None, None, None], out=self.mask)
        now = self.tokens.gather(1, self.position[:, None])
        hidden = self.model(
            input_ids=now,
            position_ids=self.position[:, None],
            attention_mask={"full_attention": None},
            use_cache=False,
            rows=self,
        ).last_hidden_state[:, 0]
        scores, places = ((hidden @ self.head).float() / self.temperature[:, None]).topk(self.top_k)
        shares = scores.softmax(-1)
        scores = scores.masked_fill(shares.cumsum(-1) - shares >= self.top_p, float("-inf"))
        noise = (
            -torch.empty_like(scores).exponential_().log()
        )  # argmax of scores + Gumbel noise is a sample
        chosen = places.gather(1, (scores + noise).argmax(-1, keepdim=True))
        following = (self.position + 1)[:, None]
        in_prompt = following < self.prompt_length[:, None]
        token = torch.where(in_prompt, self.tokens.gather(1, following), self.written_ids[chosen])
        self.tokens.scatter_(1, following, token)
        ended = (~in_prompt & (token == self.stop_id)) | (following == self.length - 1)
        self.done |= ended[:, 0]
        self.position += ~self.done

    def run(
        self, stream: Iterator[list[tuple[Plan, list[int], float]]], seconds: float
    ) -> Iterator[tuple[Plan, list[int], bool]]:
        """Yield (plan, written ids, complete) until the time is over."""
        torch.manual_seed(0)
        advance = self.step
        if self.device == "cuda":
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                for _ in range(3):
                    self.step()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.step()
            advance = graph.replay
        self.done.fill_(True)
        waiting: list[tuple[Plan, list[int], float]] = []
        owner: dict[int, tuple[Plan, int]] = {}
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            free = self.done.nonzero()[:, 0]
            rows = free.tolist()
            if rows:
                tokens, ends = self.tokens[free].tolist(), self.position[free].tolist()
                while len(waiting) < len(rows):
                    waiting.extend(next(stream))
                lengths, warmth = [], []
                fresh = torch.zeros(len(rows), self.length, dtype=torch.long)
                for i, row in enumerate(rows):
                    if row in owner:
                        plan, start = owner[row]
                        yield plan, tokens[i][start : ends[i] + 1], ends[i] + 2 < self.length
                    plan, ids, temperature = waiting.pop()
                    fresh[i, : len(ids)] = torch.tensor(ids)
                    owner[row] = (plan, len(ids))
                    lengths.append(len(ids))
                    warmth.append(temperature)
                self.tokens[free] = fresh.to(self.device)
                self.prompt_length[free] = torch.tensor(lengths, device=self.device)
                self.temperature[free] = torch.tensor(warmth, device=self.device)
                self.position[free] = 0
                self.done[free] = False
            for _ in range(16):
                advance()
