"""Windows of steps that do not wait for the host.

At this size of model a step takes the GPU a millisecond, and Python longer than that to prepare it.
So the state of decoding is on the device: a step samples the next tokens and writes the inputs of
the next step. It can be repeated without the host until every row has stopped.

    host                                             device
    parameters, block tables, prompts  --copy-->     buffers
                                                     begin, step, step, ..., step
    samples, state                     <--copy--     buffers

The host lays out the tokens of a step with prompts, but for those that only the device knows. While
a window runs, the host may launch the next: its rows then go on from wherever the device has come
to. Each step is one launch, a CUDA graph. Padded tokens store nothing, and padded rows see nothing.

Where several ranks share the model, each has a `Decoder` with the same limits. Rank 0's is the one
described above. It sends the others the shapes of a window's steps, and the inputs of every step
device to device.

A step that the host samples for is laid out like one with prompts, and ends after the layers.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from pagedlab.sampling import NewTokens
from pagedlab.scheduler import Chunk
from pagedlab_fast.buffers import HostBuffers
from pagedlab_fast.decode_state import begin
from pagedlab_fast.device_step import DeviceStep, GraphRunner
from pagedlab_fast.shapes import Limits, StepShape, StepShapes
from pagedlab_fast.window import RowPlan, Window


class Decoder:
    """Launches windows of steps and collects their tokens.

    Args:
        step: runs a step on the device.
        limits: of every window.
        graphs: whether steps are CUDA graphs; else kernels are launched one by one.
    """

    def __init__(self, step: DeviceStep, limits: Limits, graphs: bool) -> None:
        self.step = step
        self.shapes = StepShapes(limits)
        self.buffers = step.buffers
        self.tokens = step.tokens
        self.runner = GraphRunner(step, self.shapes.max_graph_tokens, graphs)
        self.ranks = step.ranks
        if self.ranks and graphs:
            self.ranks.graphs = [self.runner.graphs, self.runner.seen]
        # Two, used in turns: the device may still read the one while the host writes the other.
        device = step.cache.keys.device
        self.hosts = [HostBuffers(limits, device) for _ in range(2)]
        self._turn = 0

    # ------------------------------------------------------------------ windows

    def launch(self, chunks: Seq[Chunk], before: Window | None = None) -> Window:
        """Launch a window, and wait for nothing.

        The first step takes what is known of each sequence, or one token that the device has. Each
        further step takes one token of each row. A token is sampled after every position from the
        end of a sequence on.

        Args:
            chunks: what to compute of each sequence, one row each.
            before: the latest window, if it may still run. A sequence whose next token the host
                does not know goes on where that window leaves it.
        """
        plans = [RowPlan.of(chunk) for chunk in chunks]
        is_penalised = self.tokens.prepare(plans)
        shape = self._first_shape(plans)._replace(is_penalised=is_penalised)
        host = self._send_window(plans, shape, before)
        num_further = max(plan.num_samples for plan in plans) - 1
        further = self.shapes.decode(len(plans))._replace(is_penalised=is_penalised)
        self._start([shape] + [further] * num_further)
        self.buffers.send_results(host)
        is_cuda = self.buffers.params.is_cuda
        done = torch.cuda.current_stream().record_event() if is_cuda else None
        return Window(plans, host.samples, host.state, done)

    def collect(self, window: Window) -> list[NewTokens]:
        """Wait for a window: the new tokens of each row.

        A row has fewer than it should sample only if its text ended.

        Args:
            window: one of the two latest.
        """
        self._wait(window.done)
        num_rows = len(window.rows)
        num_steps = max(plan.num_samples for plan in window.rows)
        tokens = window.samples[:num_steps, :num_rows].t().tolist()
        positions = window.state[:num_rows, 1].tolist()
        collected = []
        for row, plan in enumerate(window.rows):
            # negative if the text had ended before this window
            count = max(0, positions[row] + 1 - plan.first_stop)
            collected.append(NewTokens(tokens[row][:count]))
        return collected

    def forget(self) -> None:
        """Forget what windows in flight do: their tokens are not taken."""
        self.tokens.forget()

    def _first_shape(self, plans: Seq[RowPlan]) -> StepShape:
        """The shape of a window's first step."""
        num_tokens = sum(plan.first_stop - plan.chunk.start for plan in plans)
        is_decode = num_tokens == len(plans) and all(plan.num_samples for plan in plans)
        if is_decode:
            return self.shapes.decode(len(plans))
        return self.shapes.ragged(len(plans), num_tokens)

    def _send_window(
        self, plans: Seq[RowPlan], shape: StepShape, before: Window | None = None
    ) -> HostBuffers:
        """Write all that a window needs, copy it to the device, and set the rows' state there."""
        host = self._take_turn()
        buffers = self.buffers
        host.write_params(plans, shape.rows, before)
        host.write_block_tables([plan.chunk for plan in plans])
        prompts = None
        if shape.tokens is not None:
            host.write_inputs([plan.first_chunk for plan in plans], shape)
            prompts = buffers.inputs(shape).batch
        buffers.receive(host, shape)
        buffers.state_before.copy_(buffers.state)
        begin(buffers, shape.rows, self.step.cache.block_size, prompts)
        return host

    # ------------------------------------------------------------------ steps that the host samples

    def compute(self, chunks: Seq[Chunk]) -> Tensor | None:
        """Compute all chunks, while no window runs: logits [R, V] of the rows that they want.

        The layers are a graph. None, with nothing done, if they cannot run without the logits.
        """
        fused = self.step.fused
        if fused is None:
            return None
        num_tokens = sum(chunk.stop - chunk.start for chunk in chunks)
        shape = self.shapes.host_sampled(len(chunks), num_tokens)
        num_wanted = self._send_chunks(chunks, shape)
        hidden = self.runner.run(shape)
        assert hidden is not None
        return fused.logits(hidden, self.buffers.inputs(shape).batch.last_rows[:num_wanted])

    def _send_chunks(self, chunks: Seq[Chunk], shape: StepShape) -> int:
        """Write the tokens of a step, copy them to the device, and count the rows of logits that
        are wanted.
        """
        host = self._take_turn()
        host.write_block_tables(chunks)
        num_wanted = host.write_inputs(chunks, shape)
        self.buffers.receive(host, shape)
        return num_wanted

    # ------------------------------------------------------------------ before the first window

    def capture(self, is_sampled: bool = True) -> None:
        """Run a step of every shape, which compiles its kernels, and capture those that are graphs.

        Args:
            is_sampled: whether steps are captured that the device samples for, or those that the
                host does.
        """
        for shape in self.shapes.to_capture(is_sampled or self.step.fused is None):
            send = self._send_window if shape.is_sampled else self._send_chunks
            send([], shape)
            # The first run compiles what the capture in the second may not.
            self._start([shape, shape] if self.runner.can_capture(shape) else [shape])

    # ------------------------------------------------------------------ ranks, and the two hosts

    def _start(self, shapes: list[StepShape]) -> None:
        """Launch the steps of the window that was sent, on all ranks."""
        if self.ranks:
            with self.ranks.step(shapes):
                self.play(shapes)
        else:
            self.play(shapes)

    def play(self, shapes: list[StepShape]) -> None:
        """Launch this rank's part of these steps."""
        if self.ranks:
            self.ranks.share(self.buffers.block_tables[: shapes[0].rows])
        for shape in shapes:
            if self.ranks and self.ranks.rank == 0 and self.runner.captures_next(shape):
                self.ranks.wait()  # a capture waits for the device too, but without a limit
            self.runner.run(shape)

    def _take_turn(self) -> HostBuffers:
        """The other host buffers, once the device is done with what was last sent from them."""
        latest = self.hosts[self._turn]
        if latest.in_use:
            latest.in_use.record()
        self._turn = 1 - self._turn
        host = self.hosts[self._turn]
        self._wait(host.in_use)
        return host

    def _wait(self, event: torch.cuda.Event | None) -> None:
        """Wait until the device has reached the event.

        Ranks do not wait for ever: a sum may lack a rank that is silent.
        """
        if self.ranks:
            self.ranks.wait(event)
        elif event:
            event.synchronize()
