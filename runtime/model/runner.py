"""A device that executes steps in the order in which they were launched: the real model.

One worker thread takes binds, steps and releases from one queue, so that what was asked first
happens first, and "in flight" means that another thread is really computing. Nothing that goes
wrong in a step ends the thread: it comes back in that step's result.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np
import numpy.typing as npt
import torch

from ..protocols import PREVIOUS_SAMPLE, Int32Array, StepBatch, StepResult
from ..sampling_params import SamplingParams
from .attention import attention_for
from .decoder import Decoder
from .errors import ModelError, NonFiniteLogitsError, StepFailedError, StepInputError
from .kv import TorchKV
from .load import LoadedModel
from .operations import operations_for
from .sampler import Sampler
from .step import layout

_NO_SAMPLE = -1


class TorchRunner:
    """Runner over a loaded model. `num_blocks` KV blocks of `block_size` tokens each.

    Raises MemoryError.
    """

    def __init__(self, model: LoadedModel, num_blocks: int, block_size: int) -> None:
        weights = model.weights
        self._config = model.config
        self._weights = weights
        self.kv = TorchKV(model.config, num_blocks, block_size, weights.dtype, weights.device)
        attention = attention_for(model.config, block_size, weights.dtype, weights.device)
        operations = operations_for(model.config, weights.dtype, weights.device)
        self._decoder = Decoder(weights, attention, operations)
        self._decoder.pack()
        self._sampler = Sampler(model.config.vocab_size, model.config.eos_token_ids, weights.device)
        self._newest: npt.NDArray[np.int64] = np.zeros(0, np.int64)  # [rows] last sampled token
        self._unbindable: dict[int, Exception] = {}  # row -> why its bind failed
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._results: dict[int, StepResult] = {}
        self._arrived = threading.Condition()
        self._closed = False
        self._worker = threading.Thread(target=self._run, name="kvproof-runner", daemon=True)
        self._worker.start()

    def bind(self, row: int, params: SamplingParams, tokens: Int32Array, outputs: int = 0) -> None:
        """A row has a new tenant: its sampling parameters and every token known so far."""
        known = np.array(tokens, dtype=np.int64)
        self._put(lambda: self._bind(row, params, known, outputs))

    def unbind(self, row: int) -> None:
        """The row's tenant is gone; results of its launched steps are still collected."""
        self._put(lambda: self._sampler.unbind(row))

    def launch(self, batch: StepBatch) -> None:
        """Hand a step over. Never blocks; a failure shows in the result."""
        self._put(lambda: self._step(batch))

    def done(self, step: int) -> bool:
        """Whether `collect(step)` would return at once."""
        return step in self._results

    def collect(self, step: int, timeout: float | None = None) -> StepResult:
        """The step's result; steps are collected in order. Raises TimeoutError."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: step in self._results, timeout):
                raise TimeoutError(f"step {step} has no result after {timeout} s")
            return self._results.pop(step)

    def release_weights(self, level: int) -> None:
        """Give the weights' memory back: level 1 keeps a copy at hand, level 2 the file only."""
        self._call(lambda: self._release_weights(level))

    def restore_weights(self) -> None:
        """Undo `release_weights`. On an error nothing is resident, and it can be tried again."""
        self._call(self._restore_weights)

    def close(self) -> None:
        """Stop the worker after what was launched; no thread is left. Safe to call twice."""
        if not self._closed:
            self._closed = True
            self._work.put(None)
        self._worker.join()
        self._weights.forget_copy()

    def _put(self, work: Callable[[], None]) -> None:
        if self._closed:
            raise RuntimeError("the runner is closed")
        self._work.put(work)

    def _call(self, work: Callable[[], None]) -> None:
        """Run in the worker, after what was launched before; its exception comes back here."""
        answer: Future[None] = Future()

        def answered() -> None:
            try:
                work()
            except BaseException as error:
                answer.set_exception(error)
            else:
                answer.set_result(None)

        self._put(answered)
        answer.result()

    def _run(self) -> None:
        with torch.inference_mode():
            while (work := self._work.get()) is not None:
                work()

    def _release_weights(self, level: int) -> None:
        self._weights.release(level)
        self._decoder.unpack()

    def _restore_weights(self) -> None:
        was_resident = self._weights.resident
        self._weights.restore()
        if not was_resident:
            self._decoder.pack()

    def _bind(
        self, row: int, params: SamplingParams, tokens: npt.NDArray[np.int64], outputs: int
    ) -> None:
        if row >= len(self._newest):
            grown = np.full(max(row + 1, 2 * len(self._newest)), _NO_SAMPLE, np.int64)
            grown[: len(self._newest)] = self._newest
            self._newest = grown
        self._newest[row] = _NO_SAMPLE
        self._unbindable.pop(row, None)
        try:
            self._sampler.bind(row, params, tokens, outputs)
        except Exception as error:  # reported by the row's next step, not by the thread's death
            self._unbindable[row] = error

    def _step(self, batch: StepBatch) -> None:
        try:
            result = self._execute(batch)
        except BaseException as error:
            result = self._all_failed(batch, error)
        with self._arrived:
            self._results[batch.step] = result
            self._arrived.notify_all()

    def _all_failed(self, batch: StepBatch, error: BaseException) -> StepResult:
        failure = StepFailedError(f"step {batch.step}: {type(error).__name__}: {error}")
        failure.__cause__ = error
        known = batch.rows[batch.rows < len(self._newest)]
        self._newest[known] = _NO_SAMPLE
        nothing = np.full(len(batch.rows), _NO_SAMPLE, np.int32)
        return StepResult(
            batch.step, batch.rows, nothing, dict.fromkeys(batch.rows.tolist(), failure)
        )

    def _execute(self, batch: StepBatch) -> StepResult:
        if not self._weights.resident or not self.kv.resident:
            raise ModelError("weights or KV blocks are released")
        tokens, errors = self._checked(batch)
        good = np.array([row not in errors for row in batch.rows.tolist()], dtype=bool)
        sampled = np.full(len(batch.rows), _NO_SAMPLE, np.int32)
        logprobs = {}
        if good.any():
            flat = np.repeat(good, batch.counts)
            where = layout(
                batch.starts[good],
                batch.counts[good],
                batch.tables[good],
                self.kv.block_size,
                self._weights.device,
            )
            rows = batch.rows[good].astype(np.int64)
            self._sampler.saw(np.repeat(rows, where.counts), tokens[flat])
            ids = torch.from_numpy(tokens[flat]).to(self._weights.device)
            hidden = self._decoder.hidden(ids, where, self.kv)
            chosen = np.flatnonzero(batch.samples[good])
            if chosen.size:
                last = torch.from_numpy(where.last[chosen]).to(self._weights.device)
                logits = self._decoder.logits(hidden[last])
                drawn = self._sampler.sample(logits, rows[chosen], where.lengths[chosen])
                sampled[np.flatnonzero(good)[chosen]] = drawn.tokens
                logprobs = {int(rows[chosen[at]]): r for at, r in drawn.logprobs.items()}
                for row in rows[chosen[~drawn.finite]].tolist():
                    errors[row] = NonFiniteLogitsError(f"step {batch.step}: row {row}")
        failed = np.isin(batch.rows, list(errors))
        sampled[failed] = _NO_SAMPLE
        told = batch.samples | failed
        known = batch.rows < len(self._newest)
        self._newest[batch.rows[told & known]] = sampled[told & known]
        return StepResult(batch.step, batch.rows, sampled, errors, logprobs)

    def _checked(self, batch: StepBatch) -> tuple[npt.NDArray[np.int64], dict[int, Exception]]:
        """Flat token ids with earlier samples filled in, and what is wrong with which row."""
        rows, counts = batch.rows.astype(np.int64), batch.counts.astype(np.int64)
        if (counts < 1).any() or counts.sum() != len(batch.tokens):
            raise StepInputError(f"step {batch.step}: counts do not add up to the tokens")
        bound = (rows >= 0) & (rows < len(self._newest))
        newest = np.full(len(rows), _NO_SAMPLE, np.int64)
        newest[bound] = self._newest[rows[bound]]
        tokens = batch.tokens.astype(np.int64)
        owner = np.repeat(np.arange(len(rows)), counts)
        waiting = tokens == PREVIOUS_SAMPLE
        tokens[waiting] = newest[owner[waiting]]
        bad_token = np.zeros(len(rows), dtype=bool)
        bad_token[owner[(tokens < 0) | (tokens >= self._config.vocab_size)]] = True
        lengths = batch.starts.astype(np.int64) + counts
        needed = -(-lengths // self.kv.block_size)
        used = np.arange(batch.tables.shape[1]) < needed[:, None]
        outside = (batch.tables < 0) | (batch.tables >= self.kv.num_blocks)
        bad_table = (used & outside).any(axis=1) | (needed > batch.tables.shape[1])
        bad_position = (batch.starts < 0) | (lengths > self._config.max_position)
        errors = {r: e for r in rows.tolist() if (e := self._unbindable.get(r)) is not None}
        for problem, where in (
            ("the row is bound to nobody", ~bound),
            ("a token id is outside the vocabulary, or its step failed", bad_token),
            ("its block table does not cover it", bad_table),
            ("a position is outside the model's context", bad_position),
        ):
            for row in rows[where].tolist():
                errors.setdefault(row, StepInputError(f"step {batch.step}: row {row}: {problem}"))
        return tokens, errors
