"""The requests that `peers.py` sends to every engine. They depend on a seed alone.

    uniform   256 requests, prompts and answers of 100 to 1,024 tokens
    chat      512 requests of log-normal lengths: prompts of 160 tokens in the median (4 to 2,048),
              answers of 150 (4 to 1,024)
    samples   32 prompts of 1,000 tokens, 8 answers of 256 tokens to each
    turns     64 conversations of 6 turns: 60 new tokens and an answer of 100, after all before
    long      32 prompts of 12,000 tokens, answers of 256
    prefill   640 prompts of 2,048 tokens, one new token
    short     6,144 requests, prompts and answers of 16 to 64 tokens
    ends      512 questions in English; an answer ends where the model ends it, or after 1,024 tokens
    one       a single sequence, greedy: milliseconds a token over 256 tokens, after the first

Prompts are random token ids, and answers ignore the end of text, so their lengths are known. Only
`ends` is another case: each engine samples its own answers, so their lengths differ a little.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

VOCABULARY = 10_000
TEMPERATURE = 0.6
LIMITS: dict[str, float] = {}  # top_k and top_p of all samples
SUBJECTS = (
    "a bicycle", "a bridge", "a library", "a clock", "bread", "a river", "a telescope", "a violin", "rain", "a garden",
    "a lighthouse", "a train", "salt", "a kite", "a mirror", "a mountain", "honey", "a compass", "a ship", "the moon",
)  # fmt: skip
QUESTIONS = (
    "Answer in one word: what colour does {} often have?",
    "Answer yes or no: is {} heavier than {}?",
    "In one sentence, what is {}?",
    "Name five things that people do with {}.",
    "Explain to a child how {} works.",
    "Write a short story about {} and {}.",
    "Compare {} with {} in a table.",
    "Write a Python class that stands for {}, with an example of its use.",
)


@dataclass
class Work:
    """Requests that are sent at once.

    Args:
        prompts: token ids.
        lengths: new tokens of each answer.
        answers: answers to each prompt.
        temperature: of the sampling; 0 is greedy.
        texts: questions, which the model's tokenizer turns into prompts.
        ends: whether an answer ends where the model ends it. Then lengths are the most it may have.
    """

    prompts: list[list[int]]
    lengths: list[int]
    answers: int = 1
    temperature: float = TEMPERATURE
    texts: list[str] = field(default_factory=list)
    ends: bool = False


@dataclass
class Workload:
    """What is timed, and in which unit.

    Args:
        rounds: works that are sent one after another. A later one may continue the answers of the
            work before it: then its prompts are only what is appended.
        unit: "output tokens/s", "prompt tokens/s" or "ms a token". Milliseconds are the
            difference between two works that differ in the length of their answers.
        continues: whether the works are turns of the same conversations.
    """

    rounds: list[Work]
    unit: str = "output tokens/s"
    continues: bool = False


@dataclass
class Arrival:
    """A request of the open workload: when it is due, in seconds, its prompt and its length."""

    due: float
    prompt: list[int]
    length: int


def ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(VOCABULARY) for _ in range(count)]


def log_normal(rng: random.Random, median: float, sigma: float, longest: int) -> int:
    return min(longest, max(4, round(median * math.exp(rng.gauss(0, sigma)))))


def chat_prompt_length(rng: random.Random) -> int:
    return log_normal(rng, 160, 1.0, 2048)


def chat_answer_length(rng: random.Random) -> int:
    return log_normal(rng, 150, 0.8, 1024)


def between(seed: int, count: int, shortest: int, longest: int) -> Work:
    rng = random.Random(seed)
    prompts = [ids(rng, rng.randint(shortest, longest)) for _ in range(count)]
    return Work(prompts, [rng.randint(shortest, longest) for _ in range(count)])


def equal(seed: int, count: int, prompt: int, answer: int, answers: int = 1) -> Work:
    rng = random.Random(seed)
    return Work([ids(rng, prompt) for _ in range(count)], [answer] * count, answers)


def uniform(seed: int) -> Workload:
    return Workload([between(seed, 256, 100, 1024)])


def chat(seed: int) -> Workload:
    rng = random.Random(seed)
    prompts = [ids(rng, chat_prompt_length(rng)) for _ in range(512)]
    return Workload([Work(prompts, [chat_answer_length(rng) for _ in range(512)])])


def samples(seed: int) -> Workload:
    return Workload([equal(seed, 32, 1000, 256, answers=8)])


def turns(seed: int) -> Workload:
    works = [equal(1000 * seed + turn, 64, 60, 100) for turn in range(6)]
    return Workload(works, continues=True)


def long(seed: int) -> Workload:
    return Workload([equal(seed, 32, 12_000, 256)])


def prefill(seed: int) -> Workload:
    return Workload([equal(seed, 640, 2048, 1)], unit="prompt tokens/s")


def short(seed: int) -> Workload:
    return Workload([between(seed, 6144, 16, 64)])


def ends(seed: int) -> Workload:
    """Questions whose answers are of very different lengths, from a word to a story."""
    rng = random.Random(seed)
    texts = [rng.choice(QUESTIONS).format(rng.choice(SUBJECTS), rng.choice(SUBJECTS)) for _ in range(512)]
    return Workload([Work([], [1024] * len(texts), texts=texts, ends=True)])


def one(seed: int) -> Workload:
    """The first work has one new token, the second 257: the difference is 256 tokens' time."""
    rng = random.Random(seed)
    works = [Work([ids(rng, 128)], [length], temperature=0.0) for length in (1, 257)]
    return Workload(works, unit="ms a token")


WORKLOADS = {make.__name__: make for make in (uniform, chat, samples, turns, long, prefill, short, ends, one)}


def arrivals(rate: float, seed: int, least: int) -> list[Arrival]:
    """Requests of the lengths of `chat` with exponential gaps, for 8 seconds.

    Args:
        rate: requests a second.
        seed: of gaps, lengths and prompts.
        least: requests, at least.
    """
    rng = random.Random(1000 * seed + int(rate))
    due = 0.0
    requests = []
    for _ in range(max(least, int(8 * rate))):
        due += rng.expovariate(rate)
        requests.append(Arrival(due, ids(rng, chat_prompt_length(rng)), chat_answer_length(rng)))
    return requests
