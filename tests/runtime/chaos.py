"""Random operations on an engine's core, with everything that can be said of it checked.

Clients, device and clock are moved by a seeded random generator. Each delivered token is compared
with what an undisturbed run delivers after the same tokens; after each operation every count and
container is recomputed; at the end everything must be free.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from kvproof.runtime.api import (
    CallResult,
    EngineConfig,
    EngineError,
    FinishReason,
    RequestOutput,
    ResetResult,
)
from kvproof.runtime.engine import EngineCore
from kvproof.runtime.fake import ROOT, FakeRunner, extend, sampled_token
from kvproof.runtime.protocols import Connector, KVStorage
from kvproof.runtime.sampling_params import SamplingParams
from kvproof.statemachine import EngineMode

EOS = 0
VOCABULARY = 60


def sample(prefix: int, length: int) -> int:
    """The fake model: now and then a turn ends by itself."""
    return EOS if prefix % 13 == 0 else sampled_token(prefix, VOCABULARY)


@dataclass
class Client:
    """What one request's client has sent and heard."""

    id: str
    session: bool
    prefix: int = ROOT  # number of all tokens so far
    length: int = 0
    queued: deque[list[int]] = field(default_factory=deque)
    turns: int = 0
    delivered: int = 0
    finish: FinishReason | None = None
    parked: bool = False

    def take(self, tokens: list[int]) -> None:
        for token in tokens:
            self.prefix = extend(self.prefix, token)
        self.length += len(tokens)
        self.parked = False

    def hear(self, output: RequestOutput) -> None:
        assert self.finish is None, f"{self.id} is told {output} after its end"
        assert not (self.parked and output.tokens), f"{self.id}: {output} between turns"
        for token in output.tokens:
            right = sample(self.prefix, self.length)
            assert token == right, f"{self.id}: token {token} at {self.length}, not {right}"
            self.take([token])
            self.delivered += 1
        if output.finish_reason is FinishReason.TURN:
            self.turns += 1
            if self.queued:
                self.take(self.queued.popleft())
            else:
                self.parked = True
        else:
            self.finish = output.finish_reason


class Chaos:
    """One engine and its clients; `step(n)` does n random operations."""

    def __init__(
        self,
        seed: int,
        *,
        depth: int = 2,
        blocks: int = 12,
        connector: Callable[[KVStorage, random.Random, Callable[[], float]], Connector]
        | None = None,
        weights: dict[str, float] | None = None,
        **config: Any,
    ) -> None:
        self.random = random.Random(seed)
        self.now = 100.0
        options: dict[str, Any] = {
            "num_blocks": blocks,
            "block_size": 4,
            "max_model_len": 40,
            "max_num_seqs": 4,
            "max_batched_tokens": 24,
            "steps_in_flight": depth,
            "check": True,
        }
        self.config = EngineConfig(**(options | config))
        self.runner = FakeRunner(blocks, 4, manual=True, vocabulary=VOCABULARY, sample=sample)
        self.connector = (
            connector(self.runner.kv, self.random, lambda: self.now) if connector else None
        )
        self.core = EngineCore(
            self.config, self.runner, self.connector, eos_token_ids=(EOS,), clock=lambda: self.now
        )
        self.clients: dict[str, Client] = {}
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.pending: list[Future[Any]] = []
        self._next = 0
        self._weights = {
            "launch": 30.0, "finish": 30.0, "tick": 8.0, "add": 8.0, "add_session": 3.0,
            "chunk": 8.0, "close_input": 2.0, "abort": 3.0, "reset": 3.0, "pause": 1.0,
            "resume": 3.0, "sleep": 0.5, "wake": 2.0, "weights_changed": 0.3, "time": 3.0,
            "fail_row": 0.5, "fail_step": 0.1, "give_up_reset": 0.5,
        } | (weights or {})  # fmt: skip

    # --- operations -----------------------------------------------------------------------------

    def step(self, operations: int) -> None:
        names, weights = list(self._weights), list(self._weights.values())
        for name in self.random.choices(names, weights, k=operations):
            self.do(name)

    def do(self, name: str) -> None:
        self.done[name] += 1
        try:
            getattr(self, name)()
        except EngineError as refusal:
            self.refused[f"{name}: {type(refusal).__name__}"] += 1
        self.check()

    def check(self) -> None:
        self.core.lifecycle.check()
        assert self.runner.corruptions == [], self.runner.corruptions
        counts = self.core.lifecycle.view.counts
        for block in self.runner.touched():
            assert counts[block] > 0, f"block {block} has no hold, and a launched step touches it"
        self._look_at_answers()

    def add(self) -> None:
        self._add(session=False)

    def add_session(self) -> None:
        self._add(session=True)

    def _add(self, session: bool) -> None:
        if len(self.clients) > 12:
            return
        self._next += 1
        client = Client(f"r{self._next}", session)
        tokens = self._tokens(36)
        self.core.add_request(
            client.id, tokens, self._params(), on_output=client.hear, resumable=session,
            priority=self.random.randrange(3), salt=self.random.choice((b"", b"", b"x")),
        )  # fmt: skip
        client.take(tokens)
        self.clients[client.id] = client

    def _tokens(self, most: int) -> list[int]:
        """Often the same beginnings, so that prefixes are shared."""
        length = self.random.choice((1, 3, 4, 5, 8, 12, 17, most))
        start = self.random.randrange(3)
        tokens = [start + 1] * length
        if self.random.random() < 0.4:
            tokens[self.random.randrange(length)] = 7
        return tokens

    def _params(self) -> SamplingParams:
        least = self.random.choice((0, 0, 2))
        return SamplingParams(
            max_tokens=self.random.choice((2, 5, 12, 40)),
            min_tokens=least,
            ignore_eos=self.random.random() < 0.3,
            temperature=0.0,
        )

    def chunk(self) -> None:
        client = self._some(session=True)
        if client is None:
            return
        tokens = self._tokens(14)
        params = self._params() if self.random.random() < 0.8 else None
        self.core.add_chunk(client.id, tokens, params)
        if client.parked:
            client.take(tokens)
        else:
            client.queued.append(tokens)

    def close_input(self) -> None:
        client = self._some(session=True)
        if client is not None:
            self.core.close_input(client.id)

    def abort(self) -> None:
        client = self._some()
        if client is not None:
            self.core.abort(client.id)
            assert client.finish is not None

    def _some(self, session: bool = False) -> Client | None:
        found = [c for c in self.clients.values() if c.session or not session]
        return self.random.choice(found) if found else None

    def launch(self) -> None:
        self.core.launch_step()

    def finish(self) -> None:
        if self.runner.waiting_steps and self.random.random() < 0.5:
            self.runner.finish()
            return
        self.core.finish_step()

    def tick(self) -> None:
        self.core.tick()

    def time(self) -> None:
        self.now += self.random.choice((0.1, 1.0, 20.0, 400.0))
        self.core.tick()

    def reset(self) -> None:
        self.pending.append(
            self.core.reset_prefix_cache(
                self.random.random() < 0.6,
                self.random.random() < 0.3,
                self.random.choice((0.0, 0.0, 30.0)),
            )
        )

    def give_up_reset(self) -> None:
        for future in self.pending:
            future.cancel()

    def pause(self) -> None:
        mode = self.random.choice(("abort", "wait", "keep"))
        self.pending.append(self.core.pause(mode, self.random.random() < 0.3))

    def resume(self) -> None:
        self.core.resume()

    def sleep(self) -> None:
        mode = self.random.choice(("abort", "wait", "keep"))
        self.pending.append(self.core.sleep(self.random.choice((1, 2)), mode))

    def wake(self) -> None:
        self.core.wake(self.random.choice((("weights",), ("cache",), ("weights", "cache"))))

    def weights_changed(self) -> None:
        self.core.weights_changed()

    def fail_row(self) -> None:
        step = self.core.lifecycle.launched + 1
        running = list(self.core.lifecycle.running)
        if running:
            self.runner.failing_rows.add((step, self.random.choice(running)))

    def fail_step(self) -> None:
        self.runner.failing.add(self.core.lifecycle.launched + 1)

    # --- answers --------------------------------------------------------------------------------

    def _look_at_answers(self) -> None:
        for future in [f for f in self.pending if f.done()]:
            self.pending.remove(future)
            if future.cancelled():
                continue
            answer = future.result()
            if isinstance(answer, ResetResult):
                self.done[f"reset {'done' if answer else 'refused'}"] += 1
                assert answer.success or answer.holders or answer.tiers, answer
            elif isinstance(answer, CallResult):
                self.done[f"call {'done' if answer else 'refused'}"] += 1
        for client in [c for c in self.clients.values() if c.finish is not None]:
            self.done[f"finish {client.finish.value}"] += 1  # type: ignore[union-attr]
            del self.clients[client.id]

    # --- the end --------------------------------------------------------------------------------

    def drain(self) -> None:
        """Everything that can end by itself ends; sessions are closed; all is free."""
        core = self.core
        self.runner.failing.clear()
        self.runner.failing_rows.clear()
        if core.is_sleeping():
            core.wake()
        for _ in range(3000):
            if core.lifecycle.mode in (EngineMode.PAUSED, EngineMode.PAUSING):
                core.resume()
            for client in list(self.clients.values()):
                if client.session and client.parked:
                    core.close_input(client.id)
            core.tick()
            core.launch_step()
            core.finish_step()
            self.check()
            lifecycle = core.lifecycle
            left = (lifecycle.live, lifecycle.in_flight, lifecycle.finished, lifecycle.transfers)
            if not any(left):
                break
            self.now += 0.05
        else:
            raise AssertionError(f"it does not end: {core.holds()} {core.stats()}")
        assert core.holds() == [], core.holds()
        assert core.stats().blocks_free == self.config.num_blocks
        assert not self.clients, self.clients

    def close(self) -> None:
        self.core.shutdown(drain=False)
        self.runner.close()
        if self.connector is not None:
            self.connector.close()
