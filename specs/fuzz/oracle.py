"""Watches one engine: the state after each operation against the rules and the clients' knowledge.

What can be told from one snapshot alone is in `rules`; here is what needs the operation, the state
before it, or what the clients sent. Which container belongs to which state is asked of the
declaration.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...statemachine import Container, RequestState, container
from . import rules
from .client import Client
from .operations import PARKED, Drained, Operation, Outcome
from .rules import Violation
from .target import (
    NewRequest,
    Promise,
    RequestView,
    ResetAnswer,
    Settings,
    Snapshot,
    Target,
)


class Oracle:
    """Follows one engine from its first operation on."""

    def __init__(self, target: Target) -> None:
        connector = target.settings.connector
        self.settings: Settings = target.settings
        self.settles_first = target.settles_first
        self.promises = target.promises_with(connector)
        self.features = target.features_with(connector)
        self.clients: dict[str, Client] = {}

    # The clients' side, before and after a call.
    def hear(self, operation: Operation, outcome: Outcome) -> None:
        """Take note of what a client sent and the engine took."""
        if outcome.rejected is not None:
            return
        arguments = operation.arguments
        if operation.name == "add":
            request: NewRequest = arguments[0]
            keeps = Promise.SESSIONS_KEEP_EVERY_TOKEN in self.promises
            self.clients[request.id] = Client(request, keeps, self.settings.max_length)
        elif operation.name == "chunk":
            self.clients[arguments[0]].chunks.append((tuple(arguments[1]), arguments[2]))
        elif operation.name == "close_input":
            self.clients[arguments[0]].closed = True
        elif operation.name == "abort":
            self.clients[arguments[0]].aborted = True
        elif isinstance(outcome.answer, Drained):
            for name in outcome.answer.closed:
                self.clients[name].closed = True

    def may_send(self, operation: Operation) -> bool:
        """Whether a client would do this: it sends no more after it aborted or closed."""
        if operation.name not in ("chunk", "close_input"):
            return True
        client = self.clients[operation.arguments[0]]
        if client.aborted or client.closed or not client.request.session:
            return False
        return (
            operation.name != "chunk" or 0 < len(operation.arguments[1]) < self.settings.max_length
        )

    def check(
        self, before: Snapshot, operation: Operation, outcome: Outcome, now: Snapshot
    ) -> list[Violation]:
        """Every rule that the operation broke; `hear` has been called for it."""
        found = [
            *self._refusals(before, operation, outcome, now),
            *self._half_done(before, operation, outcome, now),
            *self._requests(now),
            *rules.of_blocks(now),
            *rules.of_modes(now),
            *rules.of_contents(now, self.promises),
            *self._delivery(before, now),
            *rules.of_counters(now),
        ]
        if operation.name == "reset" and isinstance(outcome.answer, ResetAnswer):
            found += self._reset(before, operation, outcome.answer, now)
        if isinstance(outcome.answer, Drained):
            found += self._drained(outcome.answer, now)
        return found

    def _refusals(
        self, before: Snapshot, operation: Operation, outcome: Outcome, now: Snapshot
    ) -> Iterator[Violation]:
        unchanged = self._unchanged(before, operation, now)
        if outcome.rejected is not None and not unchanged:
            yield Violation(
                "refused-changes-nothing",
                operation.name,
                f"{operation} was refused ({outcome.rejected}), and the state changed: "
                f"{_difference(before, now)}",
                "now == before",
                operation.name,
            )
        if (
            operation.name == "duplicate"
            and Promise.LATE_SIGNALS_CHANGE_NOTHING in self.promises
            and not unchanged
        ):
            yield Violation(
                "late-signals-ignored",
                operation.arguments[0],
                f"the second completion changed the state: {_difference(before, now)}",
                "now == before",
            )

    def _half_done(
        self, before: Snapshot, operation: Operation, outcome: Outcome, now: Snapshot
    ) -> Iterator[Violation]:
        refused = operation.name in ("sleep", "wake") and outcome.answer is False
        if refused and before.mode != now.mode:
            yield Violation(
                "failed-call-changes-nothing",
                operation.name,
                f"{operation} was refused, and the mode went from {before.mode} to {now.mode}",
                f"now.mode == {before.mode!r}",
            )

    def _unchanged(self, before: Snapshot, operation: Operation, now: Snapshot) -> bool:
        if before.steps_in_flight and operation.name in self.settles_first:
            return True  # what the steps changed is not the call's doing
        return _state(before) == _state(now)

    def _requests(self, now: Snapshot) -> Iterator[Violation]:
        for request in now.requests:
            name = request.id
            client = self.clients.get(name)
            if not request.known and not request.finished:
                yield Violation(
                    "not-forgotten",
                    name,
                    f"{name} is in {request.state}, and the engine does not know it any more",
                    f"now.request({name!r}).known or now.request({name!r}).finished",
                    request.state,
                )
                continue
            place = container(RequestState[request.state])
            expected = () if place == Container.NONE else (Container(place).name.lower(),)
            if request.known and request.containers != expected:
                yield Violation(
                    "one-container",
                    name,
                    f"{name} is in {request.state}, so it belongs in {expected or 'none'}; "
                    f"it is found in {request.containers or 'none'}",
                    f"now.request({name!r}).containers == {expected!r}",
                    f"{request.state} in {'+'.join(request.containers) or 'none'}",
                )
            if request.computed > self.settings.max_length:
                yield Violation(
                    "within-length",
                    name,
                    f"{name} counts {request.computed} computed tokens, the model takes "
                    f"{self.settings.max_length}",
                    f"now.request({name!r}).computed <= {self.settings.max_length}",
                )
                continue
            held = len(request.blocks) * self.settings.block_size
            if request.known and not request.finished and not 0 <= request.computed <= held:
                yield Violation(
                    "covered",
                    name,
                    f"{name} counts {request.computed} computed tokens, its "
                    f"{len(request.blocks)} blocks hold {held}",
                    f"0 <= now.request({name!r}).computed <= {held}",
                    request.state,
                )
            if (
                Promise.SESSIONS_STAY_WITHIN_LENGTH in self.promises
                and client is not None
                and len(request.tokens) > self.settings.max_length
            ):
                yield Violation(
                    "within-length",
                    name,
                    f"{name} has {len(request.tokens)} tokens, the model takes "
                    f"{self.settings.max_length}",
                    f"len(now.request({name!r}).tokens) <= {self.settings.max_length}",
                )

    def _delivery(self, before: Snapshot, now: Snapshot) -> Iterator[Violation]:
        for request in now.requests:
            name, client = request.id, self.clients.get(request.id)
            if client is None:
                continue
            was = before.request(name)
            if was is not None and was.finished and len(request.delivered) > len(was.delivered):
                yield Violation(
                    "delivered",
                    name,
                    f"{name} was finished ({was.state}), and was given another token",
                    f"now.request({name!r}).delivered == {was.delivered!r}",
                    "after the end",
                )
            self.clients[name], wrong = client.receive(request.delivered)
            client = self.clients[name]
            if wrong is not None:
                kind = "session" if client.request.session else "request"
                yield Violation(
                    "delivered",
                    name,
                    f"{name}: {wrong}",
                    f"now.request({name!r}).delivered[: {len(client.delivered) + 1}] == "
                    f"{_expected(client)!r}",
                    f"{kind}, turn {min(client.turns, 2)}",
                )
                continue
            yield from self._tokens(request, client)

    def _tokens(self, request: RequestView, client: Client) -> Iterator[Violation]:
        name = request.id
        possible = [tuple(tokens) for tokens in client.possible_tokens()]
        if request.known and not request.finished and request.tokens not in possible:
            yield Violation(
                "own-tokens",
                name,
                f"{name} is computed from {list(request.tokens)}; its client sent and was given "
                f"{' or '.join(str(list(p)) for p in possible)}",
                f"now.request({name!r}).tokens in {possible!r}",
                "the prompt is lost" if request.tokens[:1] != client.request.prompt[:1] else "",
            )
        ended = request.state == "FINISHED_LENGTH_CAPPED" and client.closed and not client.aborted
        if ended and client.turn and not client.turn_is_over():
            yield Violation(
                "delivered",
                name,
                f"{name} ended by its length, after {len(client.turn)} of "
                f"{client.max_tokens} tokens",
                f"len(now.request({name!r}).delivered) >= {client.max_tokens}",
                "cut off",
            )

    def _reset(
        self, before: Snapshot, operation: Operation, answer: ResetAnswer, now: Snapshot
    ) -> Iterator[Violation]:
        running, connector = operation.arguments
        transfer_open = any(t.open for t in before.transfers)
        if before.steps_in_flight and operation.name in self.settles_first:
            # Processing the launched steps may have started one.
            transfer_open = transfer_open or any(t.open for t in now.transfers)
        if answer.done:
            cached = [b for b in now.blocks if b.cached_as is not None]
            if cached:
                yield Violation(
                    "reset-clears-device",
                    str(cached[0].id),
                    f"the reset is done, and block {cached[0].id} can still be a hit",
                    "all(block.cached_as is None for block in now.blocks)",
                )
            claims = Promise.RESET_CLEARS_TIERS in self.promises or (
                connector and Promise.CONNECTOR_RESET_CLEARS_TIERS in self.promises
            )
            if claims and now.tiers:
                yield Violation(
                    "reset-clears-tiers",
                    now.tiers[0].tier,
                    f"the reset is done, and the {now.tiers[0].tier} tier can still be hit",
                    "now.tiers == ()",
                )
            return
        promised = Promise.REFUSED_RESET_CHANGES_NOTHING in self.promises
        if promised and not self._unchanged(before, operation, now):
            yield Violation(
                "refused-reset-changes-nothing",
                "reset",
                f"the reset was refused, and the state changed: {_difference(before, now)}",
                "now == before",
            )
        if Promise.REFUSED_RESET_NAMES_HOLDERS in self.promises:
            holding = {hold.owner for hold in (*before.holds, *now.holds)}
            if not answer.holders or not holding.issuperset(answer.holders):
                yield Violation(
                    "refused-reset-names-holders",
                    "reset",
                    f"the reset was refused because of {answer.holders or 'nobody'}; "
                    f"blocks are held by {sorted(holding) or 'nobody'}",
                    "answer.done or answer.holders != () and set(answer.holders) <= "
                    "{hold.owner for hold in (*before.holds, *now.holds)}",
                )
        for_transfers_only = Promise.FORCED_RESET_WAITS_FOR_TRANSFERS_ONLY in self.promises
        if running and for_transfers_only and not transfer_open:
            yield Violation(
                "forced-reset-waits-for-transfers",
                "reset",
                "a forced reset was refused, and no transfer is open; "
                f"blocks are held by {sorted({h.owner for h in now.holds}) or 'nobody'}",
                "answer.done",
                first_holder(now),
            )

    def _why_stuck(self, stuck: list[RequestView]) -> str:
        holding = [v for v in stuck if v.blocks]
        if any(
            self.clients[v.id].request.session and v.delivered and v.state == "WAITING"
            for v in holding
        ):
            return "sessions whose next turn waits hold blocks"
        if any(v.state == "WAITING_FOR_REMOTE_KVS" for v in holding):
            return "a request whose load has ended holds blocks"
        states = "+".join(sorted({v.state for v in stuck}))
        return f"{states}{' holding blocks' if holding else ''}"

    def _drained(self, drained: Drained, now: Snapshot) -> Iterator[Violation]:
        views = [r for r in now.requests if r.id in drained.stuck]
        if views:
            names = ", ".join(f"{v.id} in {v.state}" for v in views)
            rule, detail = "progress", self._why_stuck(views)
            if any(len(v.tokens) >= self.settings.max_length for v in views):
                rule, detail = "within-length", ""
            elif any(r.state == PARKED and r.known for r in now.requests):
                rule = "parked-give-way"
            yield Violation(
                rule,
                views[0].id,
                f"{names}: no transfer is open and nobody is waited for, and nothing moves",
                "drained.stuck == ()",
                detail,
            )
        live = [r for r in now.requests if r.known and not r.finished]
        busy = now.steps_in_flight or any(t.open for t in now.transfers)
        if now.holds and not live and not busy:
            owner = now.holds[0].owner
            yield Violation(
                "idle-holds-nothing",
                owner,
                f"nothing is live and nothing in flight, and {owner} holds {now.holds[0].blocks}",
                "now.holds == ()",
                now.holds[0].kind,
            )
        lost = [t for t in now.transfers if t.open and t.lost]
        if lost and Promise.LOST_TRANSFERS_END in self.promises:
            yield Violation(
                "transfers-end",
                lost[0].id,
                f"{lost[0].id} was lost, its lease is over, and it is still open",
                f"not any(t.open for t in now.transfers if t.id == {lost[0].id!r})",
            )


def first_holder(now: Snapshot) -> str:
    """What a reset has to wait for, or let go of, first: a transfer, a step, a request."""
    kinds = {hold.kind.lower() for hold in now.holds if hold.kind != "REQUEST"}
    for request in (now.request(h.owner) for h in now.holds if h.kind == "REQUEST"):
        if request is None or request.finished or request.state == "WAITING_FOR_REMOTE_KVS":
            kinds.add("transfer")
        else:
            kinds.add("running" if request.state == "RUNNING" else "resident")
    order = ("load", "store", "transfer", "step", "resident", "running")
    return next((kind for kind in order if kind in kinds), "nothing")


def _expected(client: Client) -> tuple[int, ...]:
    """All that may have been delivered by now, and the next token if there is one."""
    from .target import next_token

    if client.turn_is_over() and not client.chunks:
        return tuple(client.delivered)
    return (*client.delivered, next_token(client.tokens, client.request.stop_every))


def _state(now: Snapshot) -> Snapshot:
    """A snapshot without what a refused call may change: what it records of the attempt."""
    return replace(now, counters=())


def _difference(before: Snapshot, now: Snapshot) -> str:
    """The first few fields in which two snapshots differ."""
    parts = []
    for name in ("requests", "blocks", "holds", "transfers", "tiers", "mode", "asleep"):
        old, new = getattr(before, name), getattr(now, name)
        if old == new:
            continue
        if not isinstance(old, tuple) or len(old) != len(new):
            parts.append(f"{name}: {old} → {new}")
            continue
        parts += [f"{name}: {a} → {b}" for a, b in zip(old, new, strict=True) if a != b]
    return "; ".join(parts[:3])[:600]
