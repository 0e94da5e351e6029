"""Seeded faults: small changes of the declaration, each with the obligation that refutes it.

A fault is a piece of text and what stands there instead; the copy that is checked is real Python.
To seed another one: add it here, say who should refute it, and run `test_faults`.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvproof.specs.check.declaration import Change


@dataclass(frozen=True)
class Fault:
    """A change, who refutes it, and what its counterexample shows."""

    name: str
    file: str
    old: str
    new: str
    refuted_by: str
    #: How the broken statement begins.
    broken: str
    #: The action of the counterexample; "" where the statement is about the tables alone.
    action: str
    #: The events of the shortest script, where there is one of at most eight that is soon found.
    script: int | None = None
    #: Lines of its counterexample, or how they begin: the event, and facts before and after it;
    #: a fact of which the solver chooses the value "changes" or "stays".
    shows: tuple[str, ...] = ()
    #: The state in which the event finds its subject, where it breaks the statement in several.
    source: str = ""
    #: What is changed as well, where one guard backs another up.
    also: Change | None = None

    @property
    def change(self) -> Change:
        """The change as the declaration takes it."""
        return Change(self.file, self.old, self.new)


FAULTS = (
    Fault(
        "preempt forgets to let go",
        "request.py",
        "Row(E.PREEMPT, (RUNNING,), PREEMPTED, before=(let_go,)",
        "Row(E.PREEMPT, (RUNNING,), PREEMPTED, before=()",
        "S4", "PREEMPTED, FINISHED_*, UNKNOWN and grammar ⇒ not resident", "preempt", 3,
        shows=(
            "event: preempt of the request in RUNNING: go, “it makes room and recomputes”",
            "r.state: RUNNING → PREEMPTED",
            "r.covered stays",
        ),
    ),
    Fault(
        "letting go frees blocks under a launched step",
        "request_effects.py",
        "        return HAND_OVER\n    return RELEASE",
        "        return RELEASE\n    return RELEASE",
        "S2", "what a launched step may touch has a hold", "abort", 4,
        shows=(
            "event: abort of the request in WAITING: go, “the client gave up”",
            "r.covered changes",
            "held.by_request: yes → no",
        ),
    ),
    Fault(
        "the newest step is not recorded",
        "request_effects.py",
        "    r.newest_step = x.step\n",
        "",
        "S2", "a request knows its newest step", "launch", 3,
        shows=(
            "event: launch of the request in RUNNING: go, “a step computes it”",
            "place.touching changes",
        ),
    ),
    Fault(
        "a store is never counted",
        "transfer.py",
        "    t.waiters = 0\n    return TAKE",
        "    t.waiters = 0\n    return TAKE if x.kind == LOAD else 0",
        "S3", "a transfer's hold covers what it carries", "start", 6,
        shows=(
            "event: start of the transfer in ABSENT: go, “its blocks are held”",
            "t.state: ABSENT → QUEUED",
        ),
    ),
    Fault(
        "admission takes no hold",
        "request_effects.py",
        "    r.covered = r.covered + x.blocks\n    return TAKE",
        "    r.covered = r.covered + x.blocks\n    return 0",
        "S1", "a request's hold covers exactly the blocks of its table", "admit", 2,
        shows=(
            "event: admit of the request in WAITING: go, “it runs”",
            "r.state: WAITING → RUNNING",
            "place.position changes",
        ),
    ),
    Fault(
        "a landed load keeps its hold",
        "transfer.py",
        "Row(E.LAND, WORKING, LANDED, before=(end_hold,)",
        "Row(E.LAND, WORKING, LANDED, before=()",
        "S3", "a transfer's hold covers what it carries, until it has ended", "land", 4,
        shows=(
            "event: land of the transfer in IN_FLIGHT: go, “the copy is complete”",
            "t.state: IN_FLIGHT → LANDED",
            "held.by_transfer: yes",
        ),
    ),
    Fault(
        "a release does not look whether there is a hold",
        "blocks.py",
        "    if commands & RELEASE and h.by_transfer:",
        "    if commands & RELEASE:",
        "S1", "the block's count is the number of holds that cover it", "land",
        shows=(
            "event: land of the transfer in IN_FLIGHT: go, “the copy is complete”",
            "b.count changes",
        ),
    ),
    Fault(
        "a late fence ends a transfer that has landed once more",
        "transfer.py",
        'Row(E.FENCE, (QUARANTINED,), FENCED, before=(end_hold,),\n'
        '        why="the confirmation came after all"),\n'
        "    Row(E.FENCE, _not_in((CANCELLING, QUARANTINED))",
        'Row(E.FENCE, (QUARANTINED, LANDED), FENCED, before=(end_hold,),\n'
        '        why="the confirmation came after all"),\n'
        "    Row(E.FENCE, _not_in((CANCELLING, QUARANTINED, LANDED))",
        "S3", "fence that comes late changes nothing", "", 4,
        shows=(
            "of fence",
            "t.state: LANDED",
        ),
    ),
    Fault(
        "a growing table takes a block twice",
        "blocks.py",
        "    if commands & TAKE and wanted and not h.by_request:",
        "    if commands & TAKE and wanted:",
        "S1", "the block's count is the number of holds that cover it", "grow", 3,
        shows=(
            "event: grow of the request in RUNNING: go, “its table grows”",
            "b.count changes",
            "held.by_request: yes",
        ),
    ),
    Fault(
        "a reset does not see a store in flight",
        "reset.py",
        "return state == QUEUED or state == IN_FLIGHT or state == CANCELLING",
        "return state == QUEUED or state == CANCELLING",
        "S2", "a reset that is done leaves no hold outside quarantine", "reset", 5,
        shows=(
            "event: reset of the engine in ACTIVE: go, “decided by the holders”",
            "t.state: IN_FLIGHT",
            "held.by_transfer: yes",
        ),
    ),
    Fault(
        "a prefix is dropped whoever holds its block",
        "blocks.py",
        '    """A reset or an eviction may take its prefix away: a block with a hold keeps it."""\n'
        "    return b.count == 0",
        '    """A reset or an eviction may take its prefix away: a block with a hold keeps it."""\n'
        "    return b.count >= 0",
        "S2", "what may lose its prefix nobody holds", "", 2,
        shows=(
            "of r t",
            "b.count stays",
        ),
    ),
    Fault(
        "a forced reset skips parked sessions",
        "reset.py",
        "    if state == WAITING or state == WAITING_FOR_STREAMING_REQ:\n        return RECLAIM",
        "    if state == WAITING:\n        return RECLAIM",
        "P1", "only a request that waits for a transfer refuses a forced reset", "", 4,
        shows=(
            "r.state: WAITING_FOR_STREAMING_REQ",
            "r.covered stays",
        ),
    ),
    Fault(
        "a forced reset skips what has landed and waits",
        "reset.py",
        "    if state == WAITING or state == WAITING_FOR_STREAMING_REQ:\n        return RECLAIM",
        "    if state == WAITING_FOR_STREAMING_REQ:\n        return RECLAIM",
        "P1", "only a request that waits for a transfer refuses a forced reset", "", 4,
        shows=(
            "r.state: WAITING",
            "r.covered stays",
        ),
    ),
    Fault(
        "a refused reset preempts",
        "reset.py",
        "    if refusing > 0 or not resident:\n        return NO_EVENT",
        "    if not resident:\n        return NO_EVENT",
        "S6", "a refused reset changes nothing", "reset", 3, source="RUNNING",
        shows=(
            "event: reset of the engine in ACTIVE: go, “decided by the holders”",
            "event: preempt of the request in RUNNING: go, “it makes room and recomputes”",
            "r.state: RUNNING → PREEMPTED",
        ),
    ),
    Fault(
        "a refused reset drops prefixes",
        "reset.py",
        "    return refusing == 0\n\n\ndef request_refuses",
        "    return refusing >= 0\n\n\ndef request_refuses",
        "S6", "a refused reset changes nothing", "reset",
        shows=(
            "event: reset of the engine in ACTIVE: go, “decided by the holders”",
        ),
    ),
    Fault(
        "the connector's tier is cleared before the device",
        "reset.py",
        "    return tier_asked and refusing == 0",
        "    return tier_asked",
        "S6", "a refused reset changes nothing", "reset",
        shows=(
            "event: reset of the engine in ACTIVE: go, “decided by the holders”",
            "more.tier_present: yes → no",
        ),
    ),
    Fault(
        "reclaim keeps the computed tokens",
        "request_effects.py",
        "    r.computed = 0\n    r.written = 0\n    r.hashed = 0\n    r.reserved = 0\n",
        "    r.hashed = 0\n    r.reserved = 0\n",
        "S4", "not resident ⇒ computed tokens", "reclaim", 5,
        shows=(
            "event: reclaim of the request in WAITING: go, “its blocks serve others meanwhile”",
            "r.covered changes",
            "r.computed stays",
        ),
    ),
    Fault(
        "a preempted request is in no container",
        "request.py",
        "    if state == WAITING or state == PREEMPTED:\n        return IN_WAITING",
        "    if state == WAITING:\n        return IN_WAITING",
        "S5", "PREEMPTED is in the container that serves it", "",
        shows=(
            "of PREEMPTED",
        ),
    ),
    Fault(
        "a failed pause is not rolled back",
        "engine.py",
        "Row(E.PAUSE_FAILED, (PAUSING,), ACTIVE, before=(end_pause,)",
        "Row(E.PAUSE_FAILED, (PAUSING,), ACTIVE, before=()",
        "S8", "ACTIVE is awake and has no pause", "pause_failed", 2,
        shows=(
            "event: pause_failed of the engine in PAUSING: go, “back to where it was”",
            "e.mode: PAUSING → ACTIVE",
        ),
    ),
    Fault(
        "a step runs while the cache is asleep",
        "engine.py",
        "def memory_resident(e: EngineFacts, x: EngineAsk) -> bool:\n"
        "    return e.weights_resident and e.cache_resident",
        "def memory_resident(e: EngineFacts, x: EngineAsk) -> bool:\n"
        "    return e.weights_resident",
        "S8", "no step runs without weights and cache", "launch_step", 7,
        shows=(
            "event: launch_step of the engine in DRAINING: go, “the next step”",
            "e.launched changes",
            "e.weights_resident: yes",
        ),
    ),
    Fault(
        "sleep discards memory that is held",
        "engine.py",
        "    return x.holds > 0\n\n\ndef paused_by_sleep",
        "    return x.holds < 0\n\n\ndef paused_by_sleep",
        "S8", "without the cache no request holds a block", "sleep", 5,
        shows=(
            "event: sleep of the engine in PAUSED: go, “its memory is given back”",
            "e.mode: PAUSED → SLEEPING",
            "e.cache_resident: yes → no",
            "r.covered stays",
        ),
    ),
    Fault(
        "a chunk for a closed session is taken",
        "request_guards.py",
        "    return r.input_open\n",
        "    return r.resumable\n",
        "S9", "it goes, is refused and is ignored where it should", "chunk",
        shows=(
            "event: chunk of the request in WAITING: go, “it waits for the turn's end”",
            "r.queued_chunks changes",
            "r.resumable: yes",
        ),
    ),
    Fault(
        "a store starts under a pending reset",
        "transfer.py",
        "    return e.pending_reset\n",
        "    return e.pending_reset and x.kind == LOAD\n",
        "P2", "no transfer comes into flight", "start", 7,
        shows=(
            "event: start of the transfer in ABSENT: go, “its blocks are held”",
            "t.state: ABSENT → QUEUED",
            "e.pending_reset: yes",
        ),
    ),
    Fault(
        "a block is published before it is written",
        "request_guards.py",
        "        and x.blocks * e.block_size <= r.written + x.tokens\n",
        "        and x.blocks * e.block_size <= r.computed\n",
        "S10", "published blocks are written up to their end", "publish",
        shows=(
            "event: publish of the request in RUNNING: go",
            "r.hashed changes",
        ),
    ),
    Fault(
        "what is in flight at a turn's end still counts",
        "request_effects.py",
        "    r.stale_step = r.newest_step\n    return 0\n\n\ndef keep_what_is_written",
        "    return 0\n\n\ndef keep_what_is_written",
        "S4", "only what runs computes, and only what runs or was preempted has output", "stop", 4,
        shows=(
            "event: stop of the request in RUNNING: go, “the turn is over, the session parks”",
            "r.state: RUNNING → WAITING_FOR_STREAMING_REQ",
        ),
    ),
    Fault(
        "a processed step keeps its holds",
        "blocks.py",
        "    if h.by_step and h.step == step:",
        "    if h.by_step and h.step < step:",
        "S3", "a STEP hold is of the request's newest step", "step_processed", 5,
        shows=(
            "event: step_processed of the engine in ACTIVE: go, “its results are in”",
            "e.processed changes",
            "held.by_step: yes",
        ),
    ),
    Fault(
        "a transfer that is given up ends its hold",
        "transfer.py",
        "Row(E.GIVE_UP, (CANCELLING,), QUARANTINED, before=(keep_hold,)",
        "Row(E.GIVE_UP, (CANCELLING,), QUARANTINED, before=(end_hold,)",
        "S3", "a transfer's hold covers what it carries", "give_up", 5,
        shows=(
            "event: give_up of the transfer in CANCELLING: go",
            "t.state: CANCELLING → QUARANTINED",
            "held.by_transfer: yes → no",
        ),
    ),
    Fault(
        "a block in quarantine can still be hit",
        "blocks.py",
        "    b.quarantined = acquired(b.quarantined, 1)\n    b.cached = False\n",
        "    b.quarantined = acquired(b.quarantined, 1)\n",
        "S2", "a block in quarantine is no hit", "give_up",
        shows=(
            "event: give_up of the transfer in CANCELLING: go",
            "b.cached: yes",
            "b.quarantined changes",
        ),
    ),
    Fault(
        "an abort leaves the transfer's list of waiters alone",
        "request.py",
        "FINISH = (let_go, stop_waiting, drop_queue)",
        "FINISH = (let_go, drop_queue)",
        "S4", "it waits for a transfer exactly in WAITING_FOR_REMOTE_KVS", "abort", 3,
        shows=(
            "event: abort of the request in WAITING_FOR_REMOTE_KVS: go, “the client gave up”",
            "r.state: WAITING_FOR_REMOTE_KVS → FINISHED_ABORTED",
            "r.waits_for stays",
        ),
    ),
    Fault(
        "two oldest requests are each other's victims",
        "policy.py",
        "    return (priority < other_priority) | ((priority == other_priority) & "
        "(arrival < other_arrival))",
        "    return (priority < other_priority) | ((priority == other_priority) & "
        "(arrival <= other_arrival))",
        "P5", "nobody is ahead of itself", "",
        shows=(
            "broken: false",
        ),
    ),
    Fault(
        "weights_changed leaves the epoch",
        "engine.py",
        "    e.epoch = e.epoch + 1\n",
        "    e.epoch = e.epoch + 0\n",
        "S7", "after weights_changed no key", "weights_changed",
        shows=(
            "event: weights_changed of the engine in PAUSED: go",
        ),
    ),
    Fault(
        "a parked session gives way to its betters only",
        "policy.py",
        '    """Whether a parked session gives its blocks up for a request that lacks some: any '
        'request."""\n    return free < needed',
        '    """Whether a parked session gives its blocks up for a request that lacks some: any '
        'request."""\n    return free + 1 < needed',
        "P6", "whoever lacks blocks, of whatever priority, may have it reclaimed", "",
        shows=(
            "broken: ¬(ask.fresh ≤ (1 + ask.free))",
        ),
    ),
    Fault(
        "a lease that is over changes nothing",
        "transfer.py",
        "Row(E.LEASE_OVER, (IN_FLIGHT,), CANCELLING,",
        "Row(E.LEASE_OVER, (IN_FLIGHT,), IN_FLIGHT,",
        "P2", "and then it is nearer to its end", "lease_over", 4,
        shows=(
            "event: lease_over of the transfer in IN_FLIGHT: go, “its worker is asked to stop”",
            "t.state: IN_FLIGHT",
        ),
    ),
    Fault(
        "a load's waiter has no deadline while the engine is paused",
        "request.py",
        "Row(E.DEADLINE, (GRAMMAR, PARKED), conditions=(clock_stands_still,), answer=NOT_NOW,",
        "Row(E.DEADLINE, (GRAMMAR, PARKED, LOADING), conditions=(clock_stands_still,), "
        "answer=NOT_NOW,",
        "P4", "a load's waiter: also while the engine is paused", "", 3,
        shows=(
            "r.state: WAITING_FOR_REMOTE_KVS",
        ),
    ),
    Fault(
        "a reclaimed session forgets its tokens",
        "request.py",
        "Row(E.RECLAIM, (PARKED, WAITING), before=(let_go,)",
        "Row(E.RECLAIM, (PARKED, WAITING), before=(let_go, erase)",
        "P3", "it keeps its tokens and its input", "reclaim",
        shows=(
            "event: reclaim of the request in WAITING: go, “its blocks serve others meanwhile”",
            "r.covered changes",
        ),
    ),
)  # fmt: skip

#: Named faults that other guards back up, and others that exploration's small instances have not
#: been shown to reach: the proofs alone look at them.
FURTHER = (
    Fault(
        "a load starts under a pending reset",
        "transfer.py",
        "    return e.pending_reset\n",
        "    return e.pending_reset and x.kind == STORE\n",
        "P2", "no transfer comes into flight", "admit_remote", 3,
        also=Change(
            "request_guards.py",
            "be done.\"\"\"\n    return e.pending_reset\n",
            "be done.\"\"\"\n    return False\n",
        ),
        shows=(
            "event: admit_remote of the request in WAITING: go, “its prefix is loaded”",
            "event: start of the transfer in ABSENT: go, “its blocks are held”",
            "e.pending_reset: yes",
        ),
    ),
    Fault(
        "a load's own row takes no notice of a pending reset",
        "transfer.py",
        "    return e.pending_reset\n",
        "    return e.pending_reset and x.kind == STORE\n",
        "S9", "it goes, is refused and is ignored where it should", "start",
        shows=(
            "event: start of the transfer in ABSENT",
            "e.pending_reset: yes",
        ),
    ),
    Fault(
        "a request is admitted to load under a pending reset",
        "request_guards.py",
        "be done.\"\"\"\n    return e.pending_reset\n",
        "be done.\"\"\"\n    return False\n",
        "S9", "it goes, is refused and is ignored where it should", "admit_remote",
        shows=(
            "event: admit_remote of the request in WAITING: go, “its prefix is loaded”",
            "r.state: WAITING → WAITING_FOR_REMOTE_KVS",
            "e.pending_reset: yes",
        ),
    ),
    Fault(
        "a stop after preemption leaves the request in no container",
        "request.py",
        "Row(E.STOP, (RUNNING, PREEMPTED), WAITING_FOR_STREAMING_REQ, unless=(chunk_queued,)",
        "Row(E.STOP, (RUNNING, PREEMPTED), UNKNOWN, unless=(chunk_queued,)",
        "S5", "a live request stays live or is finished", "stop", 4, source="PREEMPTED",
        shows=(
            "event: stop of the request in PREEMPTED: go, “the turn is over, the session parks”",
            "r.state: PREEMPTED → UNKNOWN",
        ),
    ),
    Fault(
        "a reset drops a block with a store in flight",
        "reset.py",
        "return state == QUEUED or state == IN_FLIGHT or state == CANCELLING",
        "return state == QUEUED or state == CANCELLING",
        "S2", "a reset never frees a referenced block", "reset",
        also=Change("blocks.py", "    if may_drop(b):\n", "    if b.count >= 0:\n"),
        shows=(
            "event: reset of the engine in ACTIVE: go, “decided by the holders”",
            "t.state: IN_FLIGHT",
            "b.cached: yes → no",
            "held.by_transfer: yes",
        ),
    ),
    Fault(
        "an eviction drops a block that is held",
        "blocks.py",
        "    if may_drop(b):\n",
        "    if b.count >= 0:\n",
        "S2", "a block with a hold keeps its prefix", "evict", 5,
        shows=(
            "event: evict",
            "b.cached: yes → no",
        ),
    ),
)  # fmt: skip
