"""What the fuzzer sees of the runtime target: the engine's records as a `Snapshot`.

Beside them stands what the engine does not keep: what it delivered, which content each of its
keys stands for, and which copy is which.
"""

from __future__ import annotations

from collections.abc import Iterator

from ....runtime.api import RequestOutput
from ....runtime.engine import EngineCore
from ....runtime.prefix import KeyChain
from ....statemachine import EngineMode, RequestState
from ....statemachine.states import FINISHED, QUARANTINED
from ..fake_kv import FakeKV
from ..target import BlockView, Hold, Misread, RequestView, Snapshot, TierEntry, TransferView
from .runtime_device import Device, Tier


class Observer:
    """Sees one engine, from its first request on."""

    def __init__(self, core: EngineCore, device: Device, tier: Tier | None, kv: FakeKV) -> None:
        self.core = core
        self.lifecycle = core.lifecycle
        self.device = device
        self.tier = tier
        self.kv = kv
        self.delivered: dict[str, list[int]] = {}  # of every request that was taken in
        self.misreads: list[Misread] = []
        self.names: dict[int, str] = {}  # of copies, by the number of their transfer
        self._last_tokens: dict[str, tuple[int, ...]] = {}
        self._settling = 0
        self._inputs: dict[bytes, bytes] = {}
        self._record_keys()

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
        return self.kv.prefixes.chain(chain, self.kv.root)[-self.kv.block_size :]

    def started(self, number: int) -> str | None:
        """The request that a load was started for (None: it is a store); the copy gets its name."""
        record = self.lifecycle.transfers[number]
        request = record.owner or None
        kind = "load" if request else "store"
        prefix = f"{kind}/{request or 'tier'}/"
        ordinal = sum(name.startswith(prefix) for name in self.names.values()) + 1
        self.names[number] = f"{prefix}{ordinal}"
        return request

    def about_to_settle(self) -> None:
        """The oldest launched step is about to be processed."""
        self._settling = self.lifecycle.processed + 1

    def hear(self, output: RequestOutput) -> None:
        """Output reaches its client, with what was misread for it."""
        request = output.request_id
        row = self.lifecycle.row_of(request)
        assert row is not None
        self.delivered[request] += output.tokens
        self._last_tokens[request] = tuple(self.lifecycle.sequence(row).tolist())
        wrong = self.device.wrong.pop((self._settling, row), None) if output.tokens else None
        if wrong is not None:
            self.misreads.append(Misread(request, wrong.position, wrong.block, wrong.why))

    def in_quarantine(self, number: int) -> bool:
        """The engine has given a transfer up: it waits only for the word that nobody touches it."""
        record = self.lifecycle.transfers.get(number)
        return record is not None and record.state == QUARANTINED

    # --- the state --------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The state now, with every count checked."""
        self.lifecycle.check()
        engine = self.lifecycle.engine
        mode = "ACTIVE" if engine.mode == EngineMode.ACTIVE else "PAUSED"
        asleep = {"weights": engine.weights_resident, "cache": engine.cache_resident}
        return Snapshot(
            requests=tuple(map(self._request_view, self.delivered)),
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
            waits_for=self.names[waits] if waits else None,
        )

    def _block_views(self) -> Iterator[BlockView]:
        """The blocks of the pool; those in quarantine are out of it."""
        ledger = self.lifecycle.ledger
        size = self.kv.block_size
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
                yield Hold(self.names[number], kind, tuple(record.blocks.tolist()))

    def _transfer_views(self) -> Iterator[TransferView]:
        """Every copy, as its worker knows it; the engine is done with one in quarantine."""
        for copy in self.tier.copies.values() if self.tier else ():
            given_up = copy.lost and self.in_quarantine(copy.number)
            yield TransferView(
                id=self.names[copy.number],
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
                    yield self.names[copy.number], block

    def _counters(self) -> Iterator[tuple[str, int, int]]:
        lifecycle = self.lifecycle
        live = [row for row in lifecycle.known_rows() if lifecycle.state_of(row) not in FINISHED]
        reserved = sum(int(lifecycle.view.reserved[row]) for row in live)
        yield "reserved", lifecycle.reserved, reserved
        yield "live", lifecycle.live, len(live)
        for number, record in lifecycle.transfers.items():
            waiting = [row for row in live if lifecycle.view.waits_for[row] == number]
            yield "waiters of a transfer", record.facts.waiters, len(waiting)
