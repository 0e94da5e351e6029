"""The rules that every engine must keep, checked on its state after each operation.

A rule that is broken is a `Violation`: the rule's name, whom it is about, a sentence, and an
expression over the engine's snapshot that must hold and does not, which becomes the assertion of
the generated test. Which container belongs to which state is asked of the declaration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...statemachine import Container, RequestState, container
from .client import Client
from .operations import PARKED, Drained, Operation, Outcome
from .target import (
    NewRequest,
    Promise,
    RequestView,
    ResetAnswer,
    Settings,
    Snapshot,
    Target,
)

#: Every rule, in words: what the report and the generated tests say of a broken one.
RULES = {
    "no-exception": "No internal exception escapes from a legal call.",
    "no-endless-call": "Every call returns.",
    "counts-are-holders": "A block's reference count is the number of holds that cover it.",
    "free-or-held": "Each block is either free or held, never both, never neither.",
    "touched-is-held": "What may still touch a block has a hold on it.",
    "one-container": "A live request is in exactly the container that its state says.",
    "not-forgotten": "The engine knows every request that its client has not seen ended.",
    "counters": "A counter equals what it counts.",
    "covered": "Computed tokens are covered by the blocks that the request holds.",
    "delivered": "Delivered tokens are never lost, doubled, reordered or wrong.",
    "own-tokens": "A request's tokens are its client's prompt, chunks and delivered answers.",
    "attended": "What a delivered token attended to is its own prefix's KV.",
    "within-length": "No request goes beyond the model's length.",
    "hash-is-content": "A cached block holds what its hash stands for.",
    "hash-is-content-tier": "A block that can be hit in a tier holds what its hash stands for.",
    "written-before-cached": "A block can be a hit only once it is written.",
    "refused-changes-nothing": "A call that is refused changes nothing.",
    "refused-reset-changes-nothing": "A reset that is refused leaves everything as it was.",
    "refused-reset-names-holders": "A refused reset names holders that exist.",
    "forced-reset-waits-for-transfers": "A forced reset is refused only while a transfer is open.",
    "reset-clears-device": "After a reset no earlier block of the device can be a hit.",
    "reset-clears-tiers": "After a reset no earlier block of the tiers that it names can be a hit.",
    "late-signals-ignored": "Late, duplicate and unknown signals change nothing.",
    "failed-call-changes-nothing": "A pause, sleep or wake that fails leaves the mode as it was.",
    "asleep-means-idle": "Memory is given back only when nothing holds it, and no step runs then.",
    "idle-holds-nothing": "When nothing is live and nothing in flight, nothing is held.",
    "progress": "When all transfers ended, a request that fits in an empty pool goes on.",
    "parked-give-way": "A session that waits for its client does not keep others from running.",
    "transfers-end": "A transfer whose completion is lost ends by its lease.",
}


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule."""

    rule: str
    subject: str  # a request, block, transfer, counter or call
    message: str
    assertion: str  # over `now`, the snapshot; what should be true
    detail: str = ""  # tells findings of one rule apart


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
        if outcome.skipped or outcome.rejected is not None:
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
            *self._blocks(now),
            *self._modes(now),
            *self._contents(now),
            *self._delivery(before, now),
            *self._counters(now),
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

    def _counters(self, now: Snapshot) -> Iterator[Violation]:
        for counter, says, should in now.counters:
            if says != should:
                yield Violation(
                    "counters",
                    counter,
                    f"{counter} says {says}, it should be {should}",
                    f"({counter!r}, {should}, {should}) in now.counters",
                    counter.partition(" of ")[0],
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

    def _blocks(self, now: Snapshot) -> Iterator[Violation]:
        holders = Counter(block for hold in now.holds for block in hold.blocks)
        for block in now.blocks:
            b, held = block.id, holders[block.id]
            if block.count != held:
                yield Violation(
                    "counts-are-holders",
                    str(b),
                    f"block {b} is counted {block.count} times, and held {held} times "
                    f"by {now.holders(b) or 'nobody'}",
                    f"now.block({b}).count == len(now.holders({b}))",
                    "too few" if block.count < held else "too many",
                )
            elif block.free != (block.count == 0):
                yield Violation(
                    "free-or-held",
                    str(b),
                    f"block {b} is counted {block.count} times and is "
                    f"{'' if block.free else 'not '}in the free list",
                    f"now.block({b}).free == (now.block({b}).count == 0)",
                )
        for hold in now.holds:
            if len(set(hold.blocks)) != len(hold.blocks):
                yield Violation(
                    "counts-are-holders",
                    hold.owner,
                    f"{hold.owner} holds a block twice: {hold.blocks}",
                    f"len(set({hold.blocks!r})) == len({hold.blocks!r})",
                    "twice in one hold",
                )
        free = {block.id for block in now.blocks if block.free or block.count == 0}
        for who, b in now.touched:
            if b in free:
                kind = who.partition("/")[0]
                yield Violation(
                    "touched-is-held",
                    who,
                    f"{who} may still touch block {b}, which nobody holds",
                    f"now.block({b}).count > 0",
                    kind,
                )

    def _contents(self, now: Snapshot) -> Iterator[Violation]:
        for misread in now.misreads:
            beyond, asleep = "length" in misread.why, "given back" in misread.why
            yield Violation(
                "within-length" if beyond else "asleep-means-idle" if asleep else "attended",
                misread.request,
                f"{misread.request} was given a token computed from position {misread.position}, "
                f"block {misread.block}: {misread.why}",
                "now.misreads == ()",
                "" if beyond or asleep else _kind_of_misread(misread.why),
            )
        for block in now.blocks:
            if block.cached_as is None:
                continue
            if block.being_written:
                if Promise.CACHED_BLOCKS_ARE_WRITTEN in self.promises:
                    yield Violation(
                        "written-before-cached",
                        str(block.id),
                        f"block {block.id} can be a hit, and is still being written",
                        f"now.block({block.id}).cached_as is None",
                    )
            elif block.content != block.cached_as:
                yield Violation(
                    "hash-is-content",
                    str(block.id),
                    f"block {block.id} is cached as {block.cached_as} and holds {block.content} "
                    f"(prefix ids)",
                    f"now.block({block.id}).content == now.block({block.id}).cached_as",
                    "garbage" if 0 in block.content else "another prefix",
                )
        for entry in now.tiers:
            if entry.content != entry.cached_as:
                yield Violation(
                    "hash-is-content-tier",
                    entry.tier,
                    f"the {entry.tier} tier serves {entry.content} as {entry.cached_as} "
                    f"(prefix ids)",
                    "all(entry.content == entry.cached_as for entry in now.tiers)",
                    "garbage" if 0 in entry.content else "another prefix",
                )

    def _modes(self, now: Snapshot) -> Iterator[Violation]:
        if "cache" in now.asleep and now.holds:
            hold = now.holds[0]
            yield Violation(
                "asleep-means-idle",
                hold.owner,
                f"the cache's memory is given back, and {hold.owner} holds {hold.blocks}",
                "not (now.asleep and now.holds)",
                "held",
            )

    def _reset(
        self, before: Snapshot, operation: Operation, answer: ResetAnswer, now: Snapshot
    ) -> Iterator[Violation]:
        running, connector = operation.arguments
        open_before = [t for t in before.transfers if t.open]
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
            known = {r.id for r in now.requests} | {t.id for t in now.transfers}
            known |= {h.owner for h in before.holds}
            unknown = [h for h in answer.holders if h not in known]
            if unknown or not answer.holders:
                yield Violation(
                    "refused-reset-names-holders",
                    "reset",
                    f"the reset was refused because of {answer.holders or 'nobody'}",
                    "answer.done or answer.holders",
                )
        if (
            running
            and not open_before
            and Promise.FORCED_RESET_WAITS_FOR_TRANSFERS_ONLY in self.promises
        ):
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
    from .target import next_token

    return (*client.delivered, next_token(client.tokens, client.request.stop_every))


def _kind_of_misread(why: str) -> str:
    return "own or another's KV" if "holds the KV" in why else why


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
