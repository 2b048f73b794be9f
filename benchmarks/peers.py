"""pagedlab beside other engines: the same requests, by turns, on one machine.

python benchmarks/peers.py --model FOLDER --engines pagedlab vllm sglang --json result.json
python benchmarks/peers.py --model FOLDER --engines pagedlab sglang --workloads --rates 20 60 100 --json load.json
python benchmarks/peers.py --model FOLDER --engines pagedlab vllm sglang --ranks 2 --alone --share 0.9 --json two.json
python benchmarks/common.py result.json [...]        print the tables

Each engine is started in a process of its own and keeps its share of the card's memory. All stay
there while one works: the processes of the others are stopped (SIGSTOP), so they take neither
processor nor card. In each round every engine runs every workload, in turns that begin with another
engine each time. A workload but `one` is run once with another seed before it is timed. See
`peer_workloads.py` for the requests and `peer_engines.py` for what an engine is given.

An engine that lives in a folder of its own (`pip install --target FOLDER`) is named with `--path
vllm=FOLDER`. `--random-weights` takes a folder with a configuration and a tokenizer only.

With `--rates`, requests arrive at random, so many a second, through each engine's own asynchronous interface. The
result has what their callers see: time to first token, time a token after the first, longest gap. They arrive once
before, untimed.

`--options 'sglang={"page_size": 16}'` gives an engine options of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from common import Result, command_line, show, written
from peer_engines import ENGINES, MAX_LENGTH, MAX_SEQUENCES
from peer_workloads import WORKLOADS

HERE = Path(__file__).parent
# On several ranks: the ways to sum that need NVLink multicast, see `peer_engines.py`.
NO_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2": "0",
}


class Peer:
    """An engine's process, stopped while it does not work.

    Args:
        name: of `ENGINES`.
        args: the command line.
        path: the folder that the engine is installed in; None for this Python's own packages.
    """

    def __init__(self, name: str, args: argparse.Namespace, path: str | None) -> None:
        self.name = name
        read, write = os.pipe()
        places = [path, str(HERE), str(HERE.parent) if name == "pagedlab" else None]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, places))}
        if args.ranks > 1:
            environment |= NO_MULTICAST
        self._log_path = Path(f"{args.json}.{name}.log")
        settings = {
            "model": str(args.model),
            "random_weights": args.random_weights,
            "share": args.share,
            "ranks": args.ranks,
            "further": dict(args.options).get(name, {}),
            "limits": {limit: value for limit, value in sampling_limits(args).items() if value is not None},
        }
        program = str(HERE / "peer_engines.py")
        command = [sys.executable, program, name, str(write), str(args.vocabulary), json.dumps(settings)]
        with self._log_path.open("w") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[write],
                env=environment,
                start_new_session=True,
                text=True,
            )
        os.close(write)
        self._answers = os.fdopen(read)
        self.about = self._answer()
        self._signal(signal.SIGSTOP)

    def ask(self, **command: Any) -> dict[str, Any]:
        """Run a command while all other engines are stopped."""
        self._signal(signal.SIGCONT)
        assert self._process.stdin
        print(json.dumps(command), file=self._process.stdin, flush=True)
        answer = self._answer()
        self._signal(signal.SIGSTOP)
        return answer

    def end(self) -> None:
        self._signal(signal.SIGKILL)

    def _answer(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended; see {self._log_path}")
        return json.loads(line)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def measure(names: list[str], args: argparse.Namespace, result: Result) -> None:
    """Start these engines and run all rounds by turns."""
    paths = dict(entry.split("=", 1) for entry in args.path)
    peers: list[Peer] = []
    try:
        for name in names:
            peers.append(Peer(name, args, paths.get(name)))
            result.content["engines"][name] = peers[-1].about
            print(f"{name} started", peers[-1].about, flush=True)
            result.save()
        for round_number in range(args.rounds):
            first = round_number % len(peers)
            for workload in args.workloads:
                for peer in peers[first:] + peers[:first]:
                    if workload != "one":  # the first run after a pause is slower
                        peer.ask(name=workload, seed=args.seed - 1 - round_number)
                    note(result, "rounds", workload, peer, peer.ask(name=workload, seed=args.seed + round_number))
        for rate in args.rates:
            for peer in peers:
                peer.ask(rate=rate, seed=args.seed - 1, least=args.least)
                for round_number in range(args.rounds):
                    answer = peer.ask(rate=rate, seed=args.seed + round_number, least=args.least)
                    note(result, "load", f"{rate:g}", peer, answer)
    finally:
        for peer in peers:
            peer.end()


def sampling_limits(args: argparse.Namespace) -> dict[str, Any]:
    """What all samples have in common. All engines have the same names for it."""
    return {"top_k": args.top_k, "top_p": args.top_p, "repetition_penalty": args.repetition_penalty}


def engine_options(text: str) -> tuple[str, dict[str, Any]]:
    """Read ENGINE={"option": value}."""
    name, _, options = text.partition("=")
    return name, json.loads(options)


def note(result: Result, part: str, workload: str, peer: Peer, answer: dict[str, Any]) -> None:
    brief = {key: written(value) for key, value in answer.items() if isinstance(value, float)} or answer
    print(f"{workload:12} {peer.name:10} {brief}", flush=True)
    result.note(part, workload, peer.name, answer)


def main() -> None:
    parser = command_line(__doc__, rounds=3, seed=31)
    parser.add_argument("--model", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--engines", nargs="+", required=True, choices=ENGINES)
    parser.add_argument("--workloads", nargs="*", default=list(WORKLOADS), choices=WORKLOADS)
    parser.add_argument("--rates", type=float, nargs="*", default=[], help="requests a second")
    parser.add_argument("--least", type=int, default=256, help="requests that arrive at a rate, at least")
    parser.add_argument("--share", type=float, default=0.28, help="of the card's memory, for each engine")
    parser.add_argument("--vocabulary", type=int, default=10_000, help="token ids of prompts are below")
    parser.add_argument("--random-weights", action="store_true")
    parser.add_argument("--top-k", type=int, help="of all samples")
    parser.add_argument("--top-p", type=float, help="of all samples")
    parser.add_argument("--repetition-penalty", type=float, help="of all samples")
    parser.add_argument("--options", type=engine_options, nargs="*", default=[], metavar="ENGINE=JSON")
    parser.add_argument("--ranks", type=int, default=1, help="GPUs that share the model")
    parser.add_argument("--alone", action="store_true", help="end each engine before the next one starts")
    parser.add_argument("--path", nargs="*", default=[], metavar="ENGINE=FOLDER")
    args = parser.parse_args()
    if args.json is None:
        parser.error("name the file of the result: --json FILE")
    result = Result(
        "Engines by turns on one machine, see benchmarks/peers.py",
        args.json,
        model=args.model.name,
        weights="random" if args.random_weights else "of the folder",
        limits={"tokens a sequence": MAX_LENGTH, "sequences": MAX_SEQUENCES, "share": args.share},
        sampling=sampling_limits(args),
        ranks=args.ranks,
        alone=args.alone,
        engines={},
    )
    for names in [[name] for name in args.engines] if args.alone else [args.engines]:
        measure(names, args, result)
    show([args.json])


if __name__ == "__main__":
    main()
