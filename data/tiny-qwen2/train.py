"""Train tiny-qwen2 and its tokenizer on a corpus that make_corpus.py has assembled.

    python train.py corpus OUT            # on a GPU, a few minutes
    python train.py corpus OUT --device cpu --steps 20 --batch-tokens 4096   # a rehearsal

OUT gets a Hugging Face folder (weights in bfloat16), loss.json, heldout.txt and samples.txt.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import multiprocessing
import platform
import queue
import re
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# Words with the blank before them, single digits, runs of other signs, line ends: the shape of Qwen's own rule.
SPLIT = r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+|\s*\n+|\s+(?!\S)|\s+"
PROMPTS = (
    "Once upon a time",
    "In the morning,",
    "The memory of a computer",
    "A library is",
    "The old clock",
    "Dear Anna,",
    "One day, a little fox",
    "A block table",
    "The sky is blue because",
    "It was late when",
    "When you share a block,",
    "The cat and the dog",
    "The computer on my desk",
    "Why is the sky blue?",
    "Yesterday,",
    "The box is red. The cup is blue. The hat is green.\n\nQuestion: What colour is the cup?\nAnswer:",
    "Mila is a baker. She lives in Rome. She has a cat named Otto.\n\nQuestion: Where does Mila live?\nAnswer:",
)
QUESTIONS = (
    "Why is the sky blue?",
    "What is a block table?",
    "Tell me a story about a cat and a library.",
    "How does memory work in a computer?",
    "What is paging?",
    "Explain copy-on-write.",
    "Hello!",
    "Who are you?",
    "How do I make a cup of tea?",
    "Tell me a story.",
    "What is PagedAttention?",
    "Explain to a child why we have seasons.",
    "Write a short talk between Tom and Anna about a broken clock.",
    "Describe a lighthouse.",
    "Why do cats purr?",
    "What is a KV cache?",
    "Tell me a story about a robot and a garden.",
    "What is the capital of France?",
    "How do bees make honey?",
    "Write a letter from Leo to his grandmother.",
    "The key is in the box. The ball is red. The lamp is blue. What colour is the ball?",
    "What do fish eat?",
    "Explain how a train works.",
    "What happens in the morning?",
    "Tell me about the moon.",
    "What is the difference between a cat and a dog?",
    "What is a spaceship?",
    "Write a few sentences about the sea.",
    "Explain paging to a child.",
    "My name is Anna. What is my name?",
)


def train_tokenizer(texts: list[str], size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE of `size` tokens, the three special ones last, with a ChatML template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size - 3,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        min_frequency=2,
    )
    tokenizer.train_from_iterator((re.sub(r"<\|\w+\|>", "\n", text) for text in texts), trainer)
    tokenizer.add_special_tokens([END, START, STOP])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=STOP,
        pad_token=END,
        additional_special_tokens=[START],
        model_max_length=2048,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def encode(job: tuple[Path, str]) -> tuple[np.ndarray, np.ndarray]:
    """Token ids of a file's documents, each ended by <|endoftext|>, and the documents' lengths."""
    path, tokenizer_json = job
    tokenizer = Tokenizer.from_str(tokenizer_json)
    encoded = tokenizer.encode_batch_fast(texts_of(path), add_special_tokens=False)
    end = tokenizer.token_to_id(END)
    pieces = [np.array([*document.ids, end], dtype=np.uint16) for document in encoded]
    return np.concatenate(pieces), np.array([len(piece) for piece in pieces])


def texts_of(path: Path) -> list[str]:
    """The documents of one file that make_corpus.py has written."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in file]


class Documents:
    """Token ids of many documents in one array."""

    def __init__(self, paths: list[Path], tokenizer: PreTrainedTokenizerFast) -> None:
        text = tokenizer.backend_tokenizer.to_str()
        # Processes, not forks: the parent may hold a CUDA context.
        with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
            parts = list(pool.map(encode, [(path, text) for path in paths]))
        self.ids = np.concatenate([ids for ids, _ in parts])
        self.starts = np.concatenate(
            [[0], np.cumsum(np.concatenate([lengths for _, lengths in parts]))]
        )

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        return self.ids[self.starts[index] : self.starts[index + 1]]


def pack(documents: Documents, length: int, source: Iterator[int]) -> np.ndarray:
    """One row of `length` + 1 ids: whole documents one after the other, the last one cut."""
    row, filled = np.empty(length + 1, dtype=np.int64), 0
    while filled <= length:
        piece = documents[next(source)][: length + 1 - filled]
        row[filled : filled + len(piece)] = piece
        filled += len(piece)
    return row


def batches(documents: Documents, args: argparse.Namespace) -> Iterator[torch.Tensor]:
    """Batches of rows, three of four with rows of 512 tokens, each fourth of 2,048; long documents go to long rows."""
    rng = np.random.default_rng(args.seed)
    waiting: deque[int] = deque(maxlen=20_000)

    def deck() -> Iterator[int]:
        while True:
            yield from rng.permutation(len(documents)).tolist()

    cards = deck()

    def short() -> Iterator[int]:
        for card in cards:
            if documents.starts[card + 1] - documents.starts[card] <= 512:
                yield card
            else:
                waiting.append(card)

    def long() -> Iterator[int]:
        while True:
            yield waiting.popleft() if waiting and rng.random() < 0.8 else next(cards)

    short_cards, long_cards, step = short(), long(), 0
    while True:
        length, source = (2048, long_cards) if step % 4 == 3 else (512, short_cards)
        rows = [pack(documents, length, source) for _ in range(max(1, args.batch_tokens // length))]
        yield torch.from_numpy(np.stack(rows))
        step += 1


def ahead(source: Iterator[torch.Tensor], size: int = 16) -> Iterator[torch.Tensor]:
    """The same batches, made by a thread before they are needed."""
    ready: queue.Queue[torch.Tensor] = queue.Queue(maxsize=size)

    def fill() -> None:
        for batch in source:
            ready.put(batch)

    threading.Thread(target=fill, daemon=True).start()
    while True:
        yield ready.get()


def loss_of(model: Qwen2ForCausalLM, rows: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in nats a token."""
    # A mask of None in a dict skips the mask code: attention is causal, and rows have no padding.
    hidden = model.model(
        input_ids=rows[:, :-1], attention_mask={"full_attention": None}, use_cache=False
    ).last_hidden_state
    return head_loss(hidden, model.lm_head.weight, rows[:, 1:])


def head_loss(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of the next token, computed in fp32."""
    logits = (hidden @ weight.T.to(hidden.dtype)).float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def learning_rate(step: int, args: argparse.Namespace) -> float:
    """Linear warm-up, then half a cosine down to 2 % of the peak."""
    warm = min(200, args.steps // 10 + 1)
    if step < warm:
        return args.lr * (step + 1) / warm
    done = (step - warm) / max(1, args.steps - warm)
    return args.lr * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))


def train(
    model: Qwen2ForCausalLM, train_docs: Documents, held: Documents, args: argparse.Namespace
) -> list[dict[str, float]]:
    """Train in place; the curve has train loss since the last entry and held-out loss."""
    global head_loss
    decay = [p for p in model.parameters() if p.ndim > 1]
    other = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [
            {"params": decay, "weight_decay": args.weight_decay},
            {"params": other, "weight_decay": 0.0},
        ],
        lr=args.lr,
        betas=(0.9, 0.95),
        fused=args.device == "cuda",
    )
    if args.device == "cuda":
        from torch._dynamo import config

        config.cache_size_limit = 64
        for layer in model.model.layers:
            layer.compile(dynamic=False)
        head_loss = torch.compile(head_loss, dynamic=False)
    cards = iter(list(range(len(held))) * 1000)
    held_rows = torch.from_numpy(
        np.stack([pack(held, 2048, cards) for _ in range(args.held_rows)])
    ).to(args.device)
    source = ahead(batches(train_docs, args))
    curve: list[dict[str, float]] = []
    total, since, started = torch.zeros((), device=args.device), 0, time.monotonic()
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args)
        rows = next(source).to(args.device, non_blocking=True)
        with torch.autocast(args.device, dtype=torch.bfloat16, enabled=args.device == "cuda"):
            loss = loss_of(model, rows)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        total, since = total + loss.detach(), since + 1
        if (step + 1) % args.every == 0 or step + 1 == args.steps:
            model.eval()
            with (
                torch.no_grad(),
                torch.autocast(args.device, dtype=torch.bfloat16, enabled=args.device == "cuda"),
            ):
                size = max(1, args.batch_tokens // 2048)
                parts = [
                    loss_of(model, held_rows[i : i + size]) * len(held_rows[i : i + size])
                    for i in range(0, len(held_rows), size)
                ]
            model.train()
            entry = {
                "step": step + 1,
                "tokens": (step + 1) * args.batch_tokens,
                "lr": round(learning_rate(step, args), 6),
                "train_loss": round(total.item() / since, 4),
                "heldout_loss": round(sum(p.item() for p in parts) / len(held_rows), 4),
                "seconds": round(time.monotonic() - started, 1),
            }
            curve.append(entry)
            print(entry, flush=True)
            total, since = torch.zeros((), device=args.device), 0
    return curve


def loops(ids: list[int], n: int = 8) -> int:
    """How often the most frequent run of `n` ids comes again."""
    runs: dict[tuple[int, ...], int] = {}
    for i in range(len(ids) - n + 1):
        run = tuple(ids[i : i + n])
        runs[run] = runs.get(run, 0) + 1
    return max(runs.values(), default=1) - 1


@torch.no_grad()
def samples(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, extra: list[str]) -> str:
    """Greedy answers to the fixed prompts and to the beginnings of held-out documents."""
    chats = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": q}], tokenize=False, add_generation_prompt=True
        )
        for q in QUESTIONS
    ]
    prompts = [*PROMPTS, *chats, *extra]
    tokenizer.padding_side = "left"
    ids = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False).to(
        model.device
    )
    rows = model.generate(**ids, max_new_tokens=160, do_sample=False)[
        :, ids["input_ids"].shape[1] :
    ].tolist()
    out, looping = [], 0
    for prompt, answer in zip(prompts, rows, strict=True):
        ends = [
            i for i, token in enumerate(answer) if token in model.generation_config.eos_token_id
        ]
        answer = answer[: ends[0] + 1] if ends else answer
        again = loops(answer)
        looping += again > 0
        out.append(
            f"[{len(answer)} tokens, {again} repeated runs] {prompt}\n=> {tokenizer.decode(answer)}\n"
        )
    return (
        f"{looping} of {len(out)} greedy answers of up to 160 tokens repeat a run of eight tokens\n\n"
        + "\n".join(out)
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path, help="folder that make_corpus.py has written")
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--start", type=Path, help="go on from the weights and the tokenizer in this folder"
    )
    parser.add_argument("--steps", type=int, default=9000)
    parser.add_argument("--batch-tokens", type=int, default=131_072)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--intermediate", type=int, default=416)
    parser.add_argument(
        "--every", type=int, default=500, help="steps between two entries of the loss curve"
    )
    parser.add_argument("--held-rows", type=int, default=64, help="held-out rows of 2,048 tokens")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    paths, held_path = (
        sorted(args.corpus.glob("train-*.jsonl.gz")),
        args.corpus / "heldout.jsonl.gz",
    )
    if not paths or not held_path.exists():
        raise SystemExit(
            f"{args.corpus} has no train-*.jsonl.gz and heldout.jsonl.gz; make_corpus.py assemble writes them"
        )
    if args.start:
        tokenizer = AutoTokenizer.from_pretrained(args.start, trust_remote_code=False)
    else:
        tokenizer = train_tokenizer(texts_of(paths[0])[:60_000], args.vocabulary)
    train_docs, held = Documents(paths, tokenizer), Documents([held_path], tokenizer)
    held_texts = texts_of(held_path)
    print(
        f"{len(train_docs)} documents, {len(train_docs.ids)} tokens; held out {len(held)}, {len(held.ids)}; "
        f"{len(tokenizer)} ids"
    )
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=args.hidden,
        intermediate_size=args.intermediate,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        num_key_value_heads=args.kv_heads,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        eos_token_id=tokenizer.convert_tokens_to_ids(STOP),
        bos_token_id=None,
        pad_token_id=None,
    )
    if args.start:
        config = Qwen2Config.from_pretrained(args.start)
        model = Qwen2ForCausalLM.from_pretrained(args.start, dtype=torch.float32).to(args.device)
    else:
        model = Qwen2ForCausalLM(config).to(args.device)
    size = sum(p.numel() for p in model.parameters())
    print(f"{size} parameters")
    curve = train(model, train_docs, held, args)
    # The file holds bfloat16, so samples come from rounded weights; a fresh model drops the compiled layers.
    rounded = {
        name: value.detach().to(torch.bfloat16) for name, value in model.state_dict().items()
    }
    model = Qwen2ForCausalLM(config).to(torch.bfloat16).to(args.device).eval()
    model.load_state_dict(rounded)
    ends = [tokenizer.convert_tokens_to_ids(STOP), tokenizer.convert_tokens_to_ids(END)]
    model.generation_config = GenerationConfig(
        do_sample=False, eos_token_id=ends, pad_token_id=ends[1]
    )
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    settings = {
        name: value for name, value in vars(args).items() if name not in ("corpus", "out", "start")
    }
    device = (
        torch.cuda.get_device_name() if args.device == "cuda" else platform.processor() or "cpu"
    )
    about = {
        "parameters": size,
        "train_tokens": len(train_docs.ids),
        "train_documents": len(train_docs),
        "device": device,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "settings": settings,
        "curve": curve,
    }
    (args.out / "loss.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    shown, kept = [], 0
    for text in held_texts:
        kept += len(text.encode()) + len(END) + 1
        if kept > 60_000:
            break
        shown.append(text + END + "\n")
    (args.out / "heldout.txt").write_text("".join(shown), encoding="utf-8")
    beginnings = [
        re.match(r".{20,60}?(?= )", t, re.DOTALL) for t in held_texts[:40] if not t.startswith("<|")
    ]
    report = samples(model.float(), tokenizer, [m[0] for m in beginnings if m])
    (args.out / "samples.txt").write_text(report, encoding="utf-8")
    print(report)


if __name__ == "__main__":
    main()
