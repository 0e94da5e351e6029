"""A connector that goes wrong on command, around another one that really copies.

It delays, loses, repeats, reorders, truncates and fails, and answers a cancel as badly as a
remote peer can. It never lies: whatever it signals is true of the copy underneath, so an engine
that breaks under it is at fault itself. It has no thread: all happens in the engine's calls.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from ..protocols import (
    Connector,
    Int32Array,
    KVStorage,
    SignalKind,
    TouchedConnector,
    TransferSignal,
)


class OnCancel(Enum):
    """What becomes of a copy that the engine cancels."""

    OBEY = "obey"  # it stops, and FENCED says so
    FINISH = "finish"  # it goes on to its end; that is signalled, and FENCED after it
    SILENT = "silent"  # not a word until `confirm`; the copy may still run at any time
    UNCONFIRMED = "unconfirmed"  # it says at once that it cannot tell; the copy may still run


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with one transfer. The default is nothing."""

    hold: bool = False  # the copy begins only when it is released
    delay: float = 0.0  # seconds until the copy begins
    refuse: bool = False  # it cannot be started: an OSError in the engine's call
    only: int | None = None  # blocks that are copied; then it ends in FAILED
    spoil: bool = False  # of a load: the blocks behind `only` hold garbage, a torn copy
    late: int = 0  # polls by which its signals come later
    lose: bool = False  # the signal of its end never comes, unless `find` is called
    repeat: int = 0  # how many times more its signals come, one poll apart
    on_cancel: OnCancel = OnCancel.OBEY


NO_FAULT = Fault()
#: Given the number of a transfer that starts, whether it is a load and its blocks: what goes wrong.
Chooser = Callable[[int, bool, int], Fault]


@dataclass(eq=False, slots=True)
class _Copy:
    transfer: int
    is_load: bool
    keys: Sequence[bytes]
    blocks: Int32Array
    fault: Fault
    due: float
    released: bool
    begun: bool = False
    ended: bool = False
    cancelled: bool = False
    silent: bool = False  # nothing is said of it until it is confirmed
    abandoned: bool = False  # it will never begin


class FaultyConnector:
    """A `Connector` around `inner`. What goes wrong is chosen as a transfer starts.

    First `next_load` or `next_store` is asked, in their order, else `choose`. With `rng` the
    signals of one poll come in any order. `kv` is needed to spoil blocks. `clock` is for `delay`.
    It cannot say when a delay is over, so it is no `NotifyingConnector`: the engine polls it.
    """

    def __init__(
        self,
        inner: Connector,
        choose: Chooser | None = None,
        *,
        kv: KVStorage | None = None,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.inner = inner
        self.choose = choose
        self.next_load: deque[Fault] = deque()
        self.next_store: deque[Fault] = deque()
        self.resets_to_fail = 0
        #: How often each thing went wrong, by name.
        self.counts: Counter[str] = Counter()
        self._kv = kv
        self._rng = rng
        self._clock = clock
        # A test releases copies from its own thread while the engine's loop polls.
        self._lock = threading.RLock()
        self._copies: dict[int, _Copy] = {}
        self._waiting: list[_Copy] = []
        self._lost: dict[int, TransferSignal] = {}
        self._outbox: list[tuple[int, TransferSignal]] = []  # (polls left, signal)

    # --- the engine's side --------------------------------------------------------------------

    def lookup(self, keys: Sequence[bytes]) -> int:
        """What the tier underneath says."""
        return self.inner.lookup(keys)

    def touch(self, keys: Sequence[bytes]) -> None:
        """Told to the tier underneath, if it wants to know."""
        if isinstance(self.inner, TouchedConnector):
            self.inner.touch(keys)

    def start_load(self, transfer: int, keys: Sequence[bytes], blocks: Int32Array) -> None:
        """Begin, or hold back, a copy into the device blocks. Raises OSError on command."""
        self._start(transfer, True, keys, blocks)

    def start_store(self, transfer: int, keys: Sequence[bytes], blocks: Int32Array) -> None:
        """Begin, or hold back, a copy to the tier. Raises OSError on command."""
        self._start(transfer, False, keys, blocks)

    def poll(self) -> Sequence[TransferSignal]:
        """Begin what is due, then say what has ended as far as it is to be heard by now."""
        with self._lock:
            now = self._clock()
            for copy in [copy for copy in self._waiting if copy.released and copy.due <= now]:
                try:
                    self._begin(copy)
                except Exception:  # too late to refuse: it has failed
                    self._receive(TransferSignal(copy.transfer, SignalKind.FAILED))
            for signal in self.inner.poll():
                self._receive(signal)
            heard = [signal for polls, signal in self._outbox if polls <= 0]
            self._outbox = [(polls - 1, signal) for polls, signal in self._outbox if polls > 0]
            if self._rng is not None and len(heard) > 1:
                self._rng.shuffle(heard)
            return heard

    def cancel(self, transfer: int) -> None:
        """Stop it, or not, as its fault says."""
        with self._lock:
            copy = self._copies.get(transfer)
            if copy is None:
                self.inner.cancel(transfer)
                return
            copy.cancelled = True
            how = copy.fault.on_cancel
            self.counts[f"cancel: {how.value}"] += 1
            if how is OnCancel.SILENT or how is OnCancel.UNCONFIRMED:
                copy.silent = True
                if how is OnCancel.UNCONFIRMED:
                    self._outbox.append((0, TransferSignal(transfer, SignalKind.UNCONFIRMED)))
            elif how is OnCancel.OBEY or copy.ended:
                self._stop(copy)

    def reset(self) -> bool:
        """Clear the tier, or fail on command. A store that has not begun by now never will."""
        with self._lock:
            if self.resets_to_fail > 0:
                self.resets_to_fail -= 1
                self.counts["reset failed"] += 1
                return False
            for copy in self._waiting:
                copy.abandoned = copy.abandoned or not copy.is_load
            return self.inner.reset()

    def close(self) -> None:
        """Close the tier underneath; what is held back never begins."""
        with self._lock:
            self._waiting.clear()
        self.inner.close()

    # --- the test's side ----------------------------------------------------------------------

    @property
    def held(self) -> tuple[int, ...]:
        """The transfers whose copies have not begun, oldest first."""
        with self._lock:
            return tuple(copy.transfer for copy in self._waiting)

    @property
    def unanswered(self) -> tuple[int, ...]:
        """The transfers that end only by `find`, `release` or `confirm`: lost, held or silent."""
        with self._lock:
            held = {copy.transfer for copy in self._waiting if not copy.released}
            silent = {copy.transfer for copy in self._copies.values() if copy.silent}
            return tuple(sorted(held | silent | set(self._lost)))

    def release(self, transfer: int | None = None) -> None:
        """Let a copy that is held back begin with the next poll; all of them without a number."""
        with self._lock:
            for copy in self._waiting:
                if transfer is None or copy.transfer == transfer:
                    copy.released = True

    def release_next(self, count: int = 1) -> None:
        """Let the oldest held copies begin with the next poll."""
        with self._lock:
            for copy in [copy for copy in self._waiting if not copy.released][:count]:
                copy.released = True

    def find(self, transfer: int) -> None:
        """The lost signal of a transfer comes after all, with the next poll."""
        with self._lock:
            signal = self._lost.pop(transfer, None)
            if signal is not None:
                self._outbox.append((0, signal))

    def confirm(self, transfer: int) -> None:
        """A silent copy can be asked now: FENCED comes when nothing of it is left."""
        with self._lock:
            copy = self._copies.get(transfer)
            if copy is not None and copy.silent:
                copy.silent = False
                self._stop(copy)

    def settle_all(self) -> None:
        """Whatever was lost is found, held is released and silent is confirmed."""
        for transfer in self.unanswered:
            self.find(transfer)
            self.confirm(transfer)
        self.release()

    def inject(self, signal: TransferSignal) -> None:
        """A signal out of nowhere, with the next poll."""
        with self._lock:
            self._outbox.append((0, signal))

    # --- what happens in between --------------------------------------------------------------

    def _start(
        self, transfer: int, is_load: bool, keys: Sequence[bytes], blocks: Int32Array
    ) -> None:
        with self._lock:
            planned = self.next_load if is_load else self.next_store
            if planned:
                fault = planned.popleft()
            elif self.choose is not None:
                fault = self.choose(transfer, is_load, len(blocks))
            else:
                fault = NO_FAULT
            if fault.refuse:
                self.counts["refused"] += 1
                raise OSError("the tier cannot be reached (test connector)")
            due = self._clock() + fault.delay
            copy = _Copy(transfer, is_load, keys, blocks, fault, due, released=not fault.hold)
            self._copies[transfer] = copy
            self._waiting.append(copy)
            if fault.delay or fault.hold:
                self.counts["delayed"] += 1
                return
            try:
                self._begin(copy)
            except Exception:
                del self._copies[transfer]
                raise

    def _begin(self, copy: _Copy) -> None:
        self._waiting.remove(copy)
        if copy.abandoned:
            return
        copy.begun = True
        count = len(copy.blocks) if copy.fault.only is None else copy.fault.only
        if count <= 0:
            self._receive(TransferSignal(copy.transfer, SignalKind.FAILED))
            return
        start = self.inner.start_load if copy.is_load else self.inner.start_store
        start(copy.transfer, copy.keys[:count], copy.blocks[:count])

    def _stop(self, copy: _Copy) -> None:
        if copy in self._waiting:
            self._waiting.remove(copy)
        self._lost.pop(copy.transfer, None)
        # The tier underneath answers for every number, also for one that it never knew.
        self.inner.cancel(copy.transfer)

    def _receive(self, signal: TransferSignal) -> None:
        copy = self._copies.get(signal.transfer)
        if copy is None:
            self._outbox.append((0, signal))
            return
        if signal.kind is SignalKind.FENCED:
            if not copy.silent:
                del self._copies[copy.transfer]
                self._say(copy, signal)
            return
        copy.ended = True
        if copy.fault.only is not None and copy.fault.only < len(copy.blocks):
            signal = self._truncated(copy, signal)
        if copy.silent:
            return
        if copy.fault.lose:
            self.counts["lost"] += 1
            self._lost[copy.transfer] = signal
        else:
            self._say(copy, signal)
        if copy.cancelled and copy.fault.on_cancel is OnCancel.FINISH:
            self._say(copy, TransferSignal(copy.transfer, SignalKind.FENCED))
        if not (copy.cancelled or copy.fault.lose):
            del self._copies[copy.transfer]

    def _truncated(self, copy: _Copy, signal: TransferSignal) -> TransferSignal:
        """The end of a copy of which a part was never made."""
        self.counts["truncated" if copy.fault.only else "failed"] += 1
        if not copy.is_load:
            return TransferSignal(copy.transfer, SignalKind.FAILED)
        copied = copy.fault.only or 0
        valid = min(copied, signal.valid_blocks) if signal.kind is SignalKind.FAILED else copied
        if copy.fault.spoil and self._kv is not None:
            self.counts["spoiled"] += 1
            torn = copy.blocks[copied:]
            garbage = self._kv.new_buffer(len(torn))
            garbage[...] = 0
            self._kv.write(torn, garbage)
        return TransferSignal(copy.transfer, SignalKind.FAILED, valid)

    def _say(self, copy: _Copy, signal: TransferSignal) -> None:
        if copy.fault.late:
            self.counts["late"] += 1
        if copy.fault.repeat:
            self.counts["repeated"] += 1
        for number in range(1 + copy.fault.repeat):
            self._outbox.append((copy.fault.late + number, signal))


def random_faults(rng: random.Random, rate: float = 0.5) -> Chooser:
    """Transfers of which about `rate` go wrong, in every way and mixture.

    None is held back for ever: what is delayed begins by a poll of the `clock` that the connector
    has, so a test gives it one that it moves itself.
    """

    def choose(transfer: int, is_load: bool, blocks: int) -> Fault:
        if rng.random() >= rate:
            return NO_FAULT
        return Fault(
            delay=rng.choice((0.0, 0.0, 1.0, 3.0, 30.0)),
            refuse=rng.random() < 0.05,
            only=rng.randrange(blocks) if rng.random() < 0.3 else None,
            spoil=rng.random() < 0.5,
            late=rng.choice((0, 0, 0, 1, 2, 5)),
            lose=rng.random() < 0.15,
            repeat=rng.choice((0, 0, 0, 1, 3)),
            on_cancel=rng.choice(tuple(OnCancel)),
        )

    return choose


def delayed_loads(seconds: float) -> Chooser:
    """Every load begins that much later, and nothing else goes wrong: what a demo needs."""
    fault = Fault(delay=seconds)
    return lambda transfer, is_load, blocks: fault if is_load else NO_FAULT
