"""Faults of the reference engine in what operators ask of it: resets, pauses, sleep."""

from __future__ import annotations

from kvproof.statemachine import EndsBy, EngineEvent, RequestEvent
from kvproof.statemachine.states import RUNNING, WAITING_FOR_STREAMING_REQ

from ...reference.pool import Pool
from ...reference.records import Holder, ResetAnswer
from ...reference.target import ObservedEngine
from .seeding import Seeded, seeding

FAULTS: list[Seeded] = []
seeded = seeding(FAULTS)


# --- resets --------------------------------------------------------------------------------------


@seeded("no-exception", connector="tier")
class ResetRaises(ObservedEngine):
    """A forced reset raises while a transfer is in flight."""

    def refusing(self, force: bool) -> list[Holder]:
        holders = super().refusing(force)
        if force and any(holder.kind != "REQUEST" for holder in holders):
            raise RuntimeError("cannot reset while a transfer is in flight")
        return holders


@seeded("forced-reset-waits-for-transfers")
class ResetRefusedForEver(ObservedEngine):
    """A forced reset is refused as long as a session is parked."""

    def refusing(self, force: bool) -> list[Holder]:
        if self.in_state(WAITING_FOR_STREAMING_REQ):
            return super().refusing(force=False)
        return super().refusing(force)


@seeded("refused-reset-changes-nothing")
class ResetHalfDone(ObservedEngine):
    """A refused reset has already preempted what was running."""

    def refusing(self, force: bool) -> list[Holder]:
        refusing = super().refusing(force)
        if refusing and force:
            for request in self.in_state(RUNNING):
                self.fire(request, RequestEvent.PREEMPT, forced=True)
        return refusing


@seeded("refused-reset-names-holders")
class ResetNamesNobody(ObservedEngine):
    """A refused reset does not say who refuses."""

    def reset(self, force: bool = False, connector: bool = False, wait: float = 0) -> ResetAnswer:
        answer = super().reset(force, connector, wait)
        return ResetAnswer(answer.success, answer.tiers)


@seeded("refused-reset-names-holders")
class ResetNamesBystanders(ObservedEngine):
    """A refused reset names everybody who is live, whether they hold blocks or not."""

    def refusing(self, force: bool) -> list[Holder]:
        refusing = super().refusing(force)
        named = {holder.owner for holder in refusing}
        others = [r for r in self.live() if refusing and r.id not in named]
        return [*refusing, *(Holder("REQUEST", r.id, EndsBy.ITSELF, True) for r in others)]


@seeded("reset-clears-tiers", connector="tier")
class TierLeftStale(ObservedEngine):
    """A reset that names the tier leaves it as it is."""

    def clear_tier(self) -> bool:
        return True


class KeepsPrefixes(Pool):
    keeps = False

    def drop_prefixes(self) -> None:
        if not self.keeps:
            super().drop_prefixes()


@seeded("reset-clears-device")
class DeviceLeftStale(ObservedEngine):
    """A reset lets everyone go and drops no prefix."""

    pool_class = KeepsPrefixes

    def try_reset(self, force: bool, connector: bool) -> ResetAnswer:
        assert isinstance(self.pool, KeepsPrefixes)
        self.pool.keeps = True
        answer = super().try_reset(force, connector)
        self.pool.keeps = False
        return answer


# --- pause and sleep -----------------------------------------------------------------------------


@seeded("failed-call-changes-nothing")
class PauseHalfHappens(ObservedEngine):
    """A pause that fails, because a session is parked, leaves the engine paused."""

    def pause(self, mode: str = "keep") -> bool:
        went = super().pause(mode)
        if self.in_state(WAITING_FOR_STREAMING_REQ):
            raise RuntimeError("a parked session holds blocks")
        return went


@seeded("failed-call-changes-nothing", connector="tier")
class SleepHalfHappens(ObservedEngine):
    """A sleep that is refused leaves the engine paused."""

    def tell(self, event: EngineEvent, **told: int) -> bool:
        if event == EngineEvent.SLEEP_FAILED:
            return False
        return super().tell(event, **told)


@seeded("asleep-means-idle", "no-exception")
class SleepsWhileHeld(ObservedEngine):
    """Memory is given back while requests hold blocks."""

    def holds_left(self) -> int:
        return 0

    def let_everything_go(self, refusing: int = 0) -> None:
        if not refusing:
            self.pool.drop_prefixes()
