"""A fault that is put into the declaration is found, with a shortest script that shows it."""

import pytest
from kvproof.specs.check.declaration import Change
from kvproof.specs.explore import Instance, explore, replay_on_declaration

from .systems import F, changed, core

ONE = Instance(requests=1, transfers=0)
LOADING = Instance(requests=1)
STORING = Instance(requests=1, features=core(F.STORES, F.LEASES, F.QUARANTINE))
SESSION = Instance(
    requests=1, transfers=0, block_size=2, prompt=1, model_length=4, steps_ahead=2,
    features=core(F.SESSIONS, F.STOPS, without=[F.RESETS]),
)  # fmt: skip
POLICY = Instance(transfers=0, features=core(F.POLICY, without=[F.ABORTS, F.RESETS]))

#: name -> (what is changed, where it shows, what breaks, steps of the shortest script)
EVERYDAY = {
    "blocks are released under a launched step": (
        Change("request_effects.py", "        return HAND_OVER\n    return RELEASE",
               "        return RELEASE\n    return RELEASE"),
        ONE, "S2 what a launched step touches is held", 5,
    ),
    "a block is published before it is written": (
        Change("request_effects.py", "    r.computed = advance(r.computed, x.tokens)\n    return 0",
               "    r.computed = advance(r.computed, x.tokens)\n"
               "    r.hashed = r.computed\n    return MAKE_HITS"),
        ONE, "S10 a cached block is hashed as its content", 4,
    ),
    "a cancelled load is fenced while its worker writes": (
        Change("transfer.py", "Row(E.CANCEL, (IN_FLIGHT,), CANCELLING, why=",
               "Row(E.CANCEL, (IN_FLIGHT,), FENCED, before=(end_hold,), why="),
        LOADING, "S2 what a worker touches is held", 4,
    ),
    "a refused reset lets go": (
        Change("reset.py", "    if refusing > 0 or not resident:", "    if not resident:"),
        Instance(), "a refused reset lets go of nobody", 3,
    ),
}  # fmt: skip
LONG = {
    "a release is forgotten": (
        Change("request_effects.py", "        return HAND_OVER\n    return RELEASE",
               "        return HAND_OVER\n    return 0"),
        ONE, "S1 covered is the size of the hold", 3,
    ),
    "two requests are each other's victims": (
        Change("policy.py",
               "    return ahead(for_priority, for_arrival, priority, arrival)\n\n\n"
               "def makes_way_for_waiting",
               "    return ahead(for_priority, for_arrival, priority, arrival) "
               "| (priority == for_priority)\n\n\ndef makes_way_for_waiting"),
        POLICY, "P5 while requests wait or run, tokens are delivered or requests end", None,
    ),
    "admitted again under its old step": (
        Change("request.py",
               "    Row(E.ADMIT, ADMISSIBLE, conditions=(old_step_in_flight,), answer=NOT_NOW,\n"
               '        why="its last step is not processed"),\n', ""),
        Instance(requests=1, blocks=3, transfers=0),
        "S1 a block's count is the number of holds that cover it", None,
    ),
    "a cancelling store does not refuse a reset": (
        Change("reset.py", "state == QUEUED or state == IN_FLIGHT or state == CANCELLING",
               "state == QUEUED or state == IN_FLIGHT"),
        STORING, "P1 a refused forced reset has a transfer to name", None,
    ),
    "a block is handed out with its hash": (
        Change("blocks.py", "    b.cached = False\n    b.hashed_as = 0\n    b.content_of = 0\n",
               "    b.content_of = 0\n"),
        ONE, "S10 a cached block is hashed as its content", None,
    ),
    "a held block is handed out": (
        Change("blocks.py", "    return b.count == 0 and b.quarantined == 0",
               "    return b.count <= 1 and b.quarantined == 0"),
        Instance(transfers=0), "S1 covered is the size of the hold", None,
    ),
    "a quarantined block keeps its hash": (
        Change("blocks.py", "    b.quarantined = acquired(b.quarantined, 1)\n"
               "    b.cached = False\n    b.hashed_as = 0",
               "    b.quarantined = acquired(b.quarantined, 1)"),
        STORING, "S2 a quarantined block is held and no hit", None,
    ),
    "what is given up is released": (
        Change("transfer.py", "QUARANTINED, before=(keep_hold,)",
               "QUARANTINED, before=(end_hold,)"),
        STORING, "S3 a transfer has a hold until it has ended", None,
    ),
    "a lease in flight does not run out": (
        Change("transfer.py",
               "    Row(E.LEASE_OVER, (IN_FLIGHT,), CANCELLING, "
               'why="its worker is asked to stop"),\n'
               "    Row(E.LEASE_OVER, _not_in((QUEUED, IN_FLIGHT)), answer=IGNORE",
               '    Row(E.LEASE_OVER, (IN_FLIGHT,), answer=IGNORE, why="it never runs out"),\n'
               "    Row(E.LEASE_OVER, _not_in((QUEUED, IN_FLIGHT)), answer=IGNORE"),
        Instance(requests=1, features=core(F.WAITING_RESETS, F.LOST, F.LEASES)),
        "P5 where work is left, somebody other than a client can act", None,
    ),
    "a table is cut below its computed tokens": (
        Change("request_guards.py",
               "x.blocks < r.covered and r.computed <= capacity(x.blocks, e.block_size)",
               "x.blocks < r.covered"),
        Instance(requests=1, blocks=3, transfers=0, model_length=4, features=core(F.TRIM)),
        "S4 hashed, written, computed and covered are in order", None,
    ),
    "a turn's end keeps old output": (
        Change("request.py", "before=(make_stale, keep_what_is_written), why",
               "before=(keep_what_is_written,), why"),
        SESSION, "S10 what counts as computed is written, or a step writes it", None,
    ),
    "a turn's end keeps what is not written": (
        Change("request_effects.py", "    r.computed = r.written\n    return 0", "    return 0"),
        SESSION, "S10 what counts as computed is written, or a step writes it", None,
    ),
    "an abort does not leave its transfer": (
        Change("request.py", "FINISH = (let_go, stop_waiting, drop_queue)",
               "FINISH = (let_go, drop_queue)"),
        LOADING, "S4 a request waits for a load exactly in that state", None,
    ),
    "a forgotten request is remembered in part": (
        Change("request_effects.py", "    r.loads_failed = 0\n    r.resumable = False",
               "    r.resumable = False"),
        LOADING, "a forgotten request leaves nothing", None,
    ),
    "a preempted request keeps its computed tokens": (
        Change("request_effects.py",
               "    r.computed = 0\n    r.written = 0\n    r.hashed = 0\n    r.reserved = 0",
               "    r.written = 0\n    r.hashed = 0\n    r.reserved = 0"),
        ONE, "S4 state and residency agree", None,
    ),
    "memory is given back under a quarantine": (
        Change("engine.py",
               "    Row(E.SLEEP, (PAUSED,), conditions=(quarantine_left,), answer=NOT_NOW,\n"
               '        why="a block is in quarantine"),\n'
               "    Row(E.SLEEP, (PAUSED,), conditions=(holds_left,), answer=NOT_NOW, "
               'why="a hold is left"),\n', ""),
        Instance(requests=1, features=core(F.STORES, F.LEASES, F.QUARANTINE, F.SLEEP,
                                           without=[F.RESETS])),
        "S8 asleep or without memory, nothing is held, cached or in flight", None,
    ),
    "a pause waits for what a waiting request holds": (
        Change("policy.py", "    return free < needed\n\n\ndef enough",
               "    return free < 0\n\n\ndef enough"),
        Instance(features=core(F.POLICY, F.PAUSE, without=[F.ABORTS, F.RESETS])),
        "P5 a pause that waits for all, or keeps all, is reached", None,
    ),
}  # fmt: skip


def found(change: Change, instance: Instance, name: str, steps: int | None) -> None:
    declaration = changed(change)
    report = explore(instance, declaration)
    assert report.refuted
    script = report.scripts[0]
    assert script.name == name
    if steps is not None:
        assert len(script.steps) == steps
    if script.again is not None:
        return
    # The script shows the fault where it is, and nothing where it is not.
    broken = replay_on_declaration(instance, script.labels, declaration).broken
    assert any(each.startswith(name) for each in broken)


@pytest.mark.parametrize("name", EVERYDAY)
def test_exploration_finds_a_seeded_fault(name: str) -> None:
    found(*EVERYDAY[name])


@pytest.mark.long
@pytest.mark.parametrize("name", LONG)
def test_exploration_finds_more_seeded_faults(name: str) -> None:
    found(*LONG[name])


@pytest.mark.long
def test_loads_that_start_under_a_waiting_reset_keep_it_waiting_for_ever() -> None:
    instance = Instance(requests=1, features=core(F.WAITING_RESETS, without=[F.RESETS]))
    declaration = changed(
        Change(
            "request.py",
            "    Row(E.ADMIT_REMOTE, ADMISSIBLE, conditions=(reset_pending,), answer=NOT_NOW,\n"
            '        why="a reset is pending"),\n',
            "",
        ),
        Change(
            "transfer.py",
            "    Row(E.START, (ABSENT,), conditions=(reset_pending,), answer=NOT_NOW, "
            'why="a reset is pending"),\n',
            "",
        ),
    )
    report = explore(instance, declaration)
    assert [script.name for script in report.scripts] == ["P2 a waiting forced reset is done"]


def test_symmetry_finds_a_fault_as_fast_and_its_script_runs() -> None:
    change, instance, name, steps = EVERYDAY["a refused reset lets go"]
    declaration = changed(change)
    script = explore(instance, declaration, symmetry=True).scripts[0]
    assert script.name == name
    assert len(script.steps) == steps
    broken = replay_on_declaration(instance, script.labels, declaration).broken
    assert any(each.startswith(name) for each in broken)
