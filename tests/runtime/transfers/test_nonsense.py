"""A connector whose answers are none: it counts as one that does not answer, and ends nobody."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from kvproof.runtime.api import FinishReason
from kvproof.runtime.protocols import Int32Array, SignalKind, TransferSignal

from ..harness import Bench

LANDED = SignalKind.LANDED


class Nonsense:
    """Answers as it is told to; `started` are the transfers that it was given."""

    def __init__(self, **answers: Callable[[Nonsense], Any]) -> None:
        self._answers = answers
        self.started: list[int] = []

    def _answer(self, name: str, otherwise: Any) -> Any:
        return self._answers.get(name, lambda _: otherwise)(self)

    def lookup(self, keys: Sequence[bytes]) -> int:
        return self._answer("lookup", 0)  # type: ignore[no-any-return]

    def start_load(self, transfer: int, keys: Sequence[bytes], blocks: Int32Array) -> None:
        self.started.append(transfer)

    def start_store(self, transfer: int, keys: Sequence[bytes], blocks: Int32Array) -> None:
        self.started.append(transfer)

    def poll(self) -> Sequence[TransferSignal]:
        return self._answer("poll", ())  # type: ignore[no-any-return]

    def cancel(self, transfer: int) -> None:
        self._answer("cancel", None)

    def reset(self) -> bool:
        return self._answer("reset", True)  # type: ignore[no-any-return]

    def close(self) -> None:
        self._answer("close", None)


def stops(connector: Nonsense) -> Iterator[TransferSignal]:
    """A poll that fails after its first word."""
    for number in connector.started:
        yield TransferSignal(number, LANDED)
    raise RuntimeError("poll")


def served(connector: Nonsense, **config: Any) -> Bench:
    """A bench whose request was served to its end, with all leases over at the end."""
    leases = {"transfer_lease": 5.0, "cancel_lease": 5.0, "load_deadline": 1.0}
    bench = Bench(connector=connector, **(leases | config))
    for name in "abc":
        heard = bench.add(name, [1] * 9)
        for _ in range(40):
            bench.turn()
            bench.now += 0.5
        assert heard.finish is FinishReason.LENGTH
        bench.assert_undisturbed(name, [1] * 9, 4)
        bench.core.reset_prefix_cache(True)
    assert bench.lifecycle.live == 0
    bench.core.lifecycle.check()
    return bench


@pytest.mark.parametrize(
    "found", [None, "x", -3, 10**9, 1.0, [1], 10**400, math.nan], ids=lambda found: str(found)[:6]
)
def test_a_lookup_that_gives_no_number_of_keys_is_no_hit(found: object) -> None:
    """Too many are as many as were asked for: their load never ends, and is given up."""
    connector = Nonsense(lookup=lambda _: found)
    bench = served(connector)
    assert bench.core.transfers is not None
    failed = bench.core.transfers.errors["lookup"]
    assert bool(failed) == (not isinstance(found, int))


@pytest.mark.parametrize(
    "signal",
    [
        lambda number: None,
        lambda number: number,
        lambda number: TransferSignal([number], LANDED),  # type: ignore[arg-type]
        lambda number: TransferSignal(True, LANDED),
        lambda number: TransferSignal(10**400, LANDED),
        lambda number: TransferSignal(number, "landed"),  # type: ignore[arg-type]
        lambda number: TransferSignal(number, None),  # type: ignore[arg-type]
        lambda number: TransferSignal(number, [LANDED]),  # type: ignore[arg-type]
        lambda number: TransferSignal(number, SignalKind.FAILED, "x"),  # type: ignore[arg-type]
        lambda number: TransferSignal(number, SignalKind.FAILED, None),  # type: ignore[arg-type]
    ],
)
def test_a_signal_that_is_none_is_counted_and_the_lease_sees_to_its_transfer(
    signal: Callable[[int], Any],
) -> None:
    connector = Nonsense(poll=lambda c: [signal(number) for number in c.started])
    bench = served(connector)
    assert bench.core.transfers is not None
    assert connector.started
    assert bench.core.transfers.errors["signal"] > 0
    assert bench.core.transfers.quarantines > 0, "cancelled, and nobody can say"


@pytest.mark.parametrize("valid", [-5, 10**9, 10**400])
def test_a_load_that_failed_has_no_more_valid_blocks_than_it_has_and_no_fewer_than_none(
    valid: int,
) -> None:
    def poll(connector: Nonsense) -> list[TransferSignal]:
        return [TransferSignal(n, SignalKind.FAILED, valid) for n in connector.started]

    bench = Bench(connector=Nonsense(lookup=lambda c: 0 if c.started else 2, poll=poll))
    bench.add("a", 9)
    bench.core.tick()
    bench.core.launch_step()
    assert bench.state("a") == "WAITING_FOR_REMOTE_KVS"
    bench.core.tick()
    assert bench.state("a") == "WAITING"
    assert bench.fact("a", "computed") == (8 if valid > 0 else 0)
    bench.lifecycle.check()


@pytest.mark.parametrize(
    "poll", [lambda _: None, lambda _: 5, lambda _: 1 / 0, lambda _: sys.exit(1)]
)
def test_a_poll_that_gives_no_signals_is_one_that_failed(poll: Callable[[Nonsense], Any]) -> None:
    bench = served(Nonsense(poll=poll))
    assert bench.core.transfers is not None
    assert bench.core.transfers.errors["poll"] > 0


def test_what_a_poll_says_before_it_fails_is_heard() -> None:
    bench = served(Nonsense(poll=stops))
    assert bench.core.transfers is not None
    assert bench.core.transfers.errors["poll"] > 0
    assert bench.core.transfers.quarantines == 0
    assert bench.free == 16


@pytest.mark.parametrize("cleared", [None, 0, [], ""])
def test_a_tier_that_does_not_say_that_it_is_cleared_is_not(cleared: object) -> None:
    bench = Bench(connector=Nonsense(reset=lambda _: cleared))
    result = bench.core.reset_prefix_cache(reset_connector=True).result(0)
    assert (result.success, result.retryable, result.tiers) == (False, True, ("device",))


def test_an_engine_stops_though_nothing_of_it_can_be_closed() -> None:
    bench = Bench(connector=Nonsense(close=lambda _: 1 / 0))
    bench.runner.close = lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    stopped = bench.core.shutdown()
    bench.core.tick()
    assert stopped.result(0) is None


def test_leases_of_transfers_that_have_ended_take_no_room() -> None:
    def poll(connector: Nonsense) -> list[TransferSignal]:
        return [TransferSignal(number, LANDED) for number in connector.started[-8:]]

    bench = Bench(connector=Nonsense(poll=poll), transfer_lease=math.inf)
    for number in range(100):
        bench.add("a", [number] * 5, 1)
        bench.run()
        bench.turn()
    assert bench.core.transfers is not None
    assert len(bench.core.transfers._leases) <= 80
