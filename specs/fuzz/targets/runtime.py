"""kvproof's own engine as a target: `kvproof fuzz --target runtime`.

The core is the real one, with every count checked after each call; device, tier and clock are
those of `runtime_device`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, ClassVar

from ....runtime.api import EngineConfig, EngineError, RequestOutput
from ....runtime.engine import EngineCore
from ....runtime.prefix import KeyChain
from ....runtime.sampling_params import SamplingParams
from ....statemachine import EngineMode, RequestState
from ....statemachine.states import FINISHED, QUARANTINED
from ..fake_kv import FakeKV
from ..target import (
    EOS,
    BlockView,
    Feature,
    Hold,
    Misread,
    NewRequest,
    Promise,
    RejectedError,
    RequestView,
    ResetAnswer,
    Settings,
    Snapshot,
    Target,
    TierEntry,
    TransferView,
)
from .runtime_device import Device, Tier

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
            self.tier.owner = self._owner
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
        self.all: dict[str, NewRequest] = {}
        self.delivered: dict[str, list[int]] = {}
        self.misreads: list[Misread] = []
        self._last_tokens: dict[str, tuple[int, ...]] = {}
        self._names: dict[int, str] = {}
        self._settling = 0
        self._inputs: dict[bytes, bytes] = {}
        self._record_keys()

    def close(self) -> None:
        """The engine is tried no more. Safe to call twice."""
        if self._muted:
            self._muted = False
            _QUIET.end()

    # --- what the engine does not keep ------------------------------------------------------------

    def _record_keys(self) -> None:
        """Remember of each key what it was made of, so that it can be read back."""
        hasher = self.lifecycle.hasher
        extend, width = hasher.extend, hasher.block_bytes

        def recording(chain: KeyChain, tokens: bytes) -> None:
            known = len(chain.keys)
            extend(chain, tokens)
            parents = [chain.root, *chain.keys]
            for number, key in enumerate(chain.keys[known:]):
                block = tokens[number * width : (number + 1) * width]
                self._inputs[key] = parents[known + number] + block

        hasher.extend = recording  # type: ignore[method-assign]

    def _stands_for(self, key: bytes) -> tuple[int, ...]:
        """The content that a key stands for: one prefix for each slot of its block."""
        parts: list[list[int]] = []
        width = self.lifecycle.hasher.block_bytes
        while key in self._inputs:
            data = self._inputs[key]
            key, tokens = data[:-width], data[-width:]
            parts.append(memoryview(tokens).cast("i").tolist())
        chain = [token for part in reversed(parts) for token in part]
        return self.kv.prefixes.chain(chain, self.kv.root)[-self.settings.block_size :]

    def _tenant(self, row: int) -> tuple[str, int]:
        request = self.lifecycle.id_of(row)
        return request, self.all[request].stop_every

    def _owner(self, number: int) -> str | None:
        """The request that a load was started for; the copy gets its name."""
        record = self.lifecycle.transfers[number]
        request = record.owner or None
        kind = "load" if request else "store"
        prefix = f"{kind}/{request or 'tier'}/"
        ordinal = sum(name.startswith(prefix) for name in self._names.values()) + 1
        self._names[number] = f"{prefix}{ordinal}"
        return request

    def _number(self, transfer: str) -> int:
        return next(number for number, name in self._names.items() if name == transfer)

    def _hear(self, output: RequestOutput) -> None:
        request = output.request_id
        row = self.lifecycle.row_of(request)
        assert row is not None
        self.delivered[request] += output.tokens
        self._last_tokens[request] = tuple(self.lifecycle.sequence(row).tolist())
        wrong = self.device.wrong.pop((self._settling, row), None) if output.tokens else None
        if wrong is not None:
            self.misreads.append(Misread(request, wrong.position, wrong.block, wrong.why))

    # --- clients ----------------------------------------------------------------------------------

    def add(self, request: NewRequest) -> None:
        """See Target."""
        self.all[request.id] = request
        self.delivered[request.id] = []
        try:
            self.core.add_request(
                request.id,
                list(request.prompt),
                SamplingParams(max_tokens=request.max_tokens, temperature=0.0),
                on_output=self._hear,
                priority=request.priority,
                resumable=request.session,
            )
        except EngineError as error:
            del self.all[request.id]
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
            self.core.tick()
            if self.core.launch_step():
                return True
            if self.lifecycle.moves == moves:
                return False

    def finish_step(self) -> None:
        """See Target."""
        self._settling = self.lifecycle.processed + 1
        self.core.finish_step()
        self.core.tick()

    # --- transfers --------------------------------------------------------------------------------

    def complete(self, transfer: str) -> None:
        """See Target. What is in quarantine is confirmed to be over."""
        assert self.tier is not None
        number = self._number(transfer)
        if self._in_quarantine(number):
            self.tier.confirm(number)
        else:
            self.tier.end(number, len(self.tier.copies[number].blocks))
        self.core.tick()

    def fail(self, transfer: str, valid_blocks: int) -> None:
        """See Target."""
        assert self.tier is not None
        number = self._number(transfer)
        if self._in_quarantine(number):
            self.tier.confirm(number)
        else:
            blocks = len(self.tier.copies[number].blocks)
            self.tier.end(number, min(valid_blocks, blocks - 1))
        self.core.tick()

    def lose(self, transfer: str) -> None:
        """See Target."""
        assert self.tier is not None
        self.tier.copies[self._number(transfer)].lost = True

    def duplicate(self, transfer: str) -> None:
        """See Target. Only this signal is heard: others, or a whole tick, may change something."""
        assert self.tier is not None
        assert self.core.transfers is not None
        unheard, self.tier.signals = self.tier.signals, []
        self.tier.say_again(self._number(transfer))
        self.core.transfers.hear()
        self.tier.signals = unheard

    def _in_quarantine(self, number: int) -> bool:
        record = self.lifecycle.transfers.get(number)
        return record is not None and record.state == QUARANTINED

    # --- operators --------------------------------------------------------------------------------

    def _process_launched(self) -> None:
        """What `reset` and `sleep` do first, here so that misreads find their step."""
        while self.core.in_flight:
            self._settling = self.lifecycle.processed + 1
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
        self.core.tick()
        return bool(answer.result(0))

    def wake(self) -> bool:
        """See Target."""
        return bool(self._call(self.core.wake))

    def tick(self) -> None:
        """See Target: first the leases, then those of what was cancelled, then what is heard."""
        for seconds in (_LONG, _LONG, 0.0):
            self.now += seconds
            self.core.tick()

    def _call(self, call: Any) -> Any:
        try:
            return call()
        except EngineError as error:
            raise RejectedError(str(error)) from error

    # --- the state --------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """See Target."""
        self.lifecycle.check()
        engine = self.lifecycle.engine
        mode = "ACTIVE" if engine.mode == EngineMode.ACTIVE else "PAUSED"
        asleep = {"weights": engine.weights_resident, "cache": engine.cache_resident}
        return Snapshot(
            requests=tuple(map(self._request_view, self.all)),
            blocks=tuple(self._block_views()),
            holds=tuple(self._holds()),
            transfers=tuple(self._transfer_views()),
            tiers=tuple(self._tier_entries()),
            steps_in_flight=self.core.in_flight,
            touched=tuple(self._touched()),
            misreads=tuple(self.misreads),
            counters=tuple(self._counters()),
            mode="SLEEPING" if engine.mode == EngineMode.SLEEPING else mode,
            asleep=tuple(tag for tag, resident in asleep.items() if not resident),
        )

    def _request_view(self, request: str) -> RequestView:
        lifecycle = self.lifecycle
        row = lifecycle.row_of(request)
        delivered = tuple(self.delivered[request])
        if row is None:
            info = self.core.request_info(request)
            assert info is not None
            return RequestView(
                id=request,
                state=info.state,
                containers=(),
                blocks=(),
                computed=0,
                tokens=self._last_tokens[request],
                delivered=delivered,
                finished=True,
                known=False,
            )
        state = lifecycle.state_of(row)
        places = {
            "waiting": list(lifecycle.waiting),
            "blocked": list(lifecycle.blocked),
            "running": list(lifecycle.running),
        }
        waits = int(lifecycle.view.waits_for[row])
        return RequestView(
            id=request,
            state=RequestState(state).name,
            containers=tuple(name for name, rows in places.items() for r in rows if r == row),
            blocks=tuple(lifecycle.table(row).tolist()),
            computed=int(lifecycle.view.computed[row]),
            tokens=tuple(lifecycle.sequence(row).tolist()),
            delivered=delivered,
            finished=state in FINISHED,
            waits_for=self._names[waits] if waits else None,
        )

    def _block_views(self) -> Iterator[BlockView]:
        """The blocks of the pool; those in quarantine are out of it."""
        ledger = self.lifecycle.ledger
        size = self.settings.block_size
        written = set[int]()
        for launched in self.device.steps:
            batch = launched.batch
            for table, start in zip(batch.tables.tolist(), batch.starts.tolist(), strict=True):
                written.update(block for block in table[start // size :] if block >= 0)
        for block in range(ledger.num_blocks):
            if ledger.quarantined[block]:
                continue
            key = ledger.index.key_of(block)
            yield BlockView(
                id=block,
                count=int(ledger.counts[block]),
                free=ledger.pool.is_free(block),
                content=self.kv.content(block),
                cached_as=None if key is None else self._stands_for(key),
                being_written=bool(ledger.being_written[block]) or block in written,
            )

    def _holds(self) -> Iterator[Hold]:
        """Every hold that is not in quarantine; a STEP hold is named after its request."""
        lifecycle = self.lifecycle
        for row in lifecycle.known_rows():
            if lifecycle.view.covered[row]:
                blocks = tuple(lifecycle.table(row).tolist())
                yield Hold(lifecycle.id_of(row), "REQUEST", blocks)
        for holds in lifecycle.ledger.step_holds.values():
            for hold in holds:
                yield Hold(hold.owner, "STEP", tuple(hold.blocks.tolist()))
        for number, record in lifecycle.transfers.items():
            if record.state != QUARANTINED:
                kind = "LOAD" if record.owner else "STORE"
                yield Hold(self._names[number], kind, tuple(record.blocks.tolist()))

    def _transfer_views(self) -> Iterator[TransferView]:
        """Every copy, as its worker knows it; the engine is done with one in quarantine."""
        for copy in self.tier.copies.values() if self.tier else ():
            given_up = copy.lost and self._in_quarantine(copy.number)
            yield TransferView(
                id=self._names[copy.number],
                kind=copy.kind,
                request=copy.request,
                blocks=copy.blocks,
                open=copy.open and not given_up,
                lost=copy.lost,
            )

    def _tier_entries(self) -> Iterator[TierEntry]:
        if self.tier is not None:
            for key, content in self.tier.stored.items():
                yield TierEntry("tier", content, self._stands_for(key))

    def _touched(self) -> Iterator[tuple[str, int]]:
        """What may still touch a block: launched steps, and copies that are open."""
        for launched in self.device.steps:
            for table in launched.batch.tables.tolist():
                for block in table:
                    if block >= 0:
                        yield f"step/{launched.batch.step}", block
        for copy in self.tier.copies.values() if self.tier else ():
            if copy.open:
                for block in copy.blocks:
                    yield self._names[copy.number], block

    def _counters(self) -> Iterator[tuple[str, int, int]]:
        lifecycle = self.lifecycle
        live = [row for row in lifecycle.known_rows() if lifecycle.state_of(row) not in FINISHED]
        reserved = sum(int(lifecycle.view.reserved[row]) for row in live)
        yield "reserved", lifecycle.reserved, reserved
        yield "live", lifecycle.live, len(live)
        for number, record in lifecycle.transfers.items():
            waiting = [row for row in live if lifecycle.view.waits_for[row] == number]
            yield "waiters of a transfer", record.facts.waiters, len(waiting)
