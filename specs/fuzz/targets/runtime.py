"""kvproof's own engine as a target: `kvproof fuzz --target runtime`.

The core is the real one, with every count checked after each call; device and tier are those of
`runtime_device`. What is seen of it afterwards is `runtime_observer`'s.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import Any, ClassVar

from ....runtime.api import EngineConfig, EngineError
from ....runtime.engine import EngineCore
from ....runtime.sampling_params import SamplingParams
from ..fake_kv import FakeKV
from ..target import (
    EOS,
    Feature,
    NewRequest,
    Promise,
    RejectedError,
    ResetAnswer,
    Settings,
    Snapshot,
    Target,
)
from .runtime_device import Device, Tier
from .runtime_observer import Observer

#: Longer than every lease and deadline below.
_LONG = 1000.0


class _Quiet:
    """The engine's log says nothing below CRITICAL while any engine is being tried.

    Quarantines and a clock that jumps are what is tried here, not worth a line each.
    """

    def __init__(self) -> None:
        self._logger = logging.getLogger("kvproof.runtime")
        self._level = logging.NOTSET
        self._tried = 0

    def begin(self) -> None:
        """An engine is being tried from now on."""
        if not self._tried:
            self._level = self._logger.level
            self._logger.setLevel(logging.CRITICAL)
        self._tried += 1

    def end(self) -> None:
        """One engine less; after the last of them the log is as it was."""
        self._tried -= 1
        if not self._tried:
            self._logger.setLevel(self._level)


_QUIET = _Quiet()


class RuntimeEngine(Target):
    """The engine's core, alone or with a tier that stores and loads on command."""

    features: ClassVar[frozenset[Feature]] = frozenset(Feature)
    promises: ClassVar[frozenset[Promise]] = frozenset(Promise) - {Promise.RESET_CLEARS_TIERS}
    connectors: ClassVar[tuple[str, ...]] = ("none", "tier")
    settles_first: ClassVar[frozenset[str]] = frozenset({"reset", "sleep"})

    @classmethod
    def version(cls) -> str:
        """What reports call it."""
        return "kvproof.runtime"

    @classmethod
    def features_with(cls, connector: str) -> frozenset[Feature]:
        """Without a tier there are no transfers."""
        if connector != "none":
            return cls.features
        return cls.features - {
            Feature.LOADS,
            Feature.STORES,
            Feature.FAILURES,
            Feature.LATE_SIGNALS,
            Feature.RESET_CONNECTOR,
        }

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._muted = True
        _QUIET.begin()
        self.now = 0.0
        self.kv = FakeKV(settings.blocks, settings.block_size)
        self.device = Device(self.kv, settings.blocks, self._tenant)
        self.tier = None
        if settings.connector == "tier":
            self.tier = Tier(self.kv, settings.tier_blocks)
        self.core = EngineCore(
            EngineConfig(
                num_blocks=settings.blocks,
                block_size=settings.block_size,
                max_num_seqs=settings.max_running,
                max_batched_tokens=settings.token_budget,
                max_model_len=settings.max_length,
                steps_in_flight=settings.depth,
                policy="priority" if settings.priority else "fcfs",
                load_failure_policy=settings.fail_policy,
                check=True,
            ),
            self.device,
            self.tier,
            eos_token_ids=(EOS,),
            clock=lambda: self.now,
        )
        self.lifecycle = self.core.lifecycle
        self.observer = Observer(self.core, self.device, self.tier, self.kv)
        self.misreads = self.observer.misreads
        self._names = self.observer.names
        if self.tier is not None:
            self.tier.owner = self.observer.started
        self._stop_every: dict[str, int] = {}

    def close(self) -> None:
        """The engine is tried no more. Safe to call twice."""
        if self._muted:
            self._muted = False
            _QUIET.end()

    def _tenant(self, row: int) -> tuple[str, int]:
        request = self.lifecycle.id_of(row)
        return request, self._stop_every[request]

    def _number(self, transfer: str) -> int:
        return next(number for number, name in self._names.items() if name == transfer)

    # --- clients ----------------------------------------------------------------------------------

    def add(self, request: NewRequest) -> None:
        """See Target."""
        self._stop_every[request.id] = request.stop_every
        self.observer.delivered[request.id] = []
        try:
            self.core.add_request(
                request.id,
                list(request.prompt),
                SamplingParams(max_tokens=request.max_tokens, temperature=0.0),
                on_output=self.observer.hear,
                priority=request.priority,
                resumable=request.session,
            )
        except EngineError as error:
            del self.observer.delivered[request.id]
            raise RejectedError(str(error)) from error

    def chunk(self, request: str, tokens: tuple[int, ...], max_tokens: int) -> None:
        """See Target."""
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0)
        try:
            self.core.add_chunk(request, list(tokens), params)
        except EngineError as error:
            raise RejectedError(str(error)) from error

    def close_input(self, request: str) -> None:
        """See Target."""
        try:
            self.core.close_input(request)
        except EngineError as error:
            raise RejectedError(str(error)) from error

    def abort(self, request: str) -> None:
        """See Target."""
        self.core.abort(request)

    # --- steps ------------------------------------------------------------------------------------

    def step(self) -> bool:
        """See Target. A turn that only makes room is followed by the next one."""
        while True:
            moves = self.lifecycle.moves
            self._tick()
            if self.core.launch_step():
                return True
            if self.lifecycle.moves == moves:
                return False

    def finish_step(self) -> None:
        """See Target."""
        self.observer.about_to_settle()
        self.core.finish_step()
        self._tick()

    def _tick(self) -> None:
        """A turn of the engine's loop, until what the tier said in it is heard as well.

        A call that hears of an end first would otherwise seem to have brought it about: a reset
        that is refused, for one, changes nothing itself.
        """
        self.core.tick()
        while self.tier is not None and self.tier.signals:
            self.core.tick()

    # --- transfers --------------------------------------------------------------------------------

    def complete(self, transfer: str) -> None:
        """See Target. What is in quarantine is confirmed to be over."""
        assert self.tier is not None
        number = self._number(transfer)
        if self.observer.in_quarantine(number):
            self.tier.confirm(number)
        else:
            self.tier.end(number, len(self.tier.copies[number].blocks))
        self._tick()

    def fail(self, transfer: str, valid_blocks: int) -> None:
        """See Target."""
        assert self.tier is not None
        number = self._number(transfer)
        if self.observer.in_quarantine(number):
            self.tier.confirm(number)
        else:
            blocks = len(self.tier.copies[number].blocks)
            self.tier.end(number, min(valid_blocks, blocks - 1))
        self._tick()

    def lose(self, transfer: str) -> None:
        """See Target."""
        assert self.tier is not None
        self.tier.copies[self._number(transfer)].lost = True

    def duplicate(self, transfer: str) -> None:
        """See Target. Only this signal is heard: others, or a whole tick, may change something."""
        assert self.tier is not None
        assert self.core.transfers is not None
        number = self._number(transfer)
        if any(signal.transfer == number for signal in self.tier.signals):
            raise RejectedError(f"the end of {transfer} has not been heard of once")
        unheard, self.tier.signals = self.tier.signals, []
        self.tier.say_again(number)
        self.core.transfers.hear()
        self.tier.signals = unheard

    # --- operators --------------------------------------------------------------------------------

    def _process_launched(self) -> None:
        """What `reset` and `sleep` do first, here so that misreads find their step."""
        while self.core.in_flight:
            self.observer.about_to_settle()
            self.core.finish_step()

    def reset(self, running: bool, connector: bool) -> ResetAnswer:
        """See Target."""
        self._process_launched()
        result = self.core.reset_prefix_cache(running, connector).result(0)
        if result.success and (connector or self.tier is None):
            # Nothing computed before may be attended to again, in any tier.
            self.kv.new_epoch()
        holders = tuple(
            holder.owner if holder.kind == "REQUEST" else self._names[int(holder.owner)]
            for holder in result.holders
        )
        return ResetAnswer(result.success, holders)

    def pause(self, mode: str) -> None:
        """See Target. A pause that waits is reached in a later step."""
        self._call(lambda: self.core.pause(mode))

    def resume(self) -> None:
        """See Target."""
        self._call(self.core.resume)

    def sleep(self, level: int) -> bool:
        """See Target."""
        self._process_launched()
        answer: Future[Any] = self._call(lambda: self.core.sleep(level, "keep"))
        self._tick()
        return bool(answer.result(0))

    def wake(self) -> bool:
        """See Target."""
        return bool(self._call(self.core.wake))

    def tick(self) -> None:
        """See Target: first the leases, then those of what was cancelled, then what is heard."""
        for seconds in (_LONG, _LONG, 0.0):
            self.now += seconds
            self._tick()

    def _call(self, call: Any) -> Any:
        try:
            return call()
        except EngineError as error:
            raise RejectedError(str(error)) from error

    # --- the state --------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """See Target."""
        return self.observer.snapshot()
