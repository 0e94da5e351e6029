"""Shrinking keeps the failure and drops what it does not need; the same seed finds the same."""

from pathlib import Path

from kvproof.specs.fuzz.campaign import Budget, search
from kvproof.specs.fuzz.operations import Operation
from kvproof.specs.fuzz.run import replay
from kvproof.specs.fuzz.shrink import Shrinker
from kvproof.specs.fuzz.target import NewRequest, Settings

from . import documented
from .test_documented_target import ABORT_RAISES


def test_a_failure_shrinks_to_the_calls_that_it_needs(tmp_path: Path) -> None:
    module = documented.load(tmp_path, "shrunk_abort", ABORT_RAISES)
    operations = [
        Operation("add", (NewRequest("r1", tuple(range(5, 12)), max_tokens=3),)),
        Operation("add", (NewRequest("r2", (1, 2, 3), max_tokens=3),)),
        Operation("step"),
        Operation("finish_step"),
        Operation("step"),
        Operation("abort", ("r2",)),
        Operation("finish_step"),
        Operation("step"),
        Operation("abort", ("r2",)),
    ]
    failure = replay(module.MyTarget, Settings(blocks=9, block_size=2, max_length=16), operations)
    assert failure is not None
    smallest = Shrinker(failure).shrink()
    assert [operation.name for operation in smallest.operations] == ["add", "abort", "abort"]
    (request,) = smallest.operations[0].arguments
    assert request.prompt == (1,)
    assert smallest.key() == failure.key()


def test_no_more_runs_are_replayed_than_asked_for(tmp_path: Path) -> None:
    module = documented.load(tmp_path, "shrunk_little", ABORT_RAISES)
    operations = [Operation("add", (NewRequest("r7", (1, 2, 3), max_tokens=3),))]
    operations += [Operation("step"), *[Operation("abort", ("r7",))] * 2]
    failure = replay(module.MyTarget, Settings(), operations)
    assert failure is not None
    shrinker = Shrinker(failure, replays=0)
    unshrunk = shrinker.shrink()
    assert [operation.name for operation in unshrunk.operations] == [o.name for o in operations]
    assert unshrunk.operations[-1] == Operation("abort", ("r1",)), "but its requests are numbered"
    shrinker = Shrinker(failure, replays=1)
    assert len(shrinker.shrink().operations) <= len(operations)
    assert shrinker.budget == 0


def test_operations_that_make_no_sense_are_left_out(tmp_path: Path) -> None:
    module = documented.load(tmp_path, "shrunk_sound")
    operations = [Operation("abort", ("nobody",)), Operation("finish_step"), Operation("step")]
    assert replay(module.MyTarget, Settings(), operations) is None


def test_an_operation_survives_json() -> None:
    for operation in (
        Operation("add", (NewRequest("r1", (1, 2), session=True, priority=2),)),
        Operation("chunk", ("r1", (3, 4), 2)),
        Operation("reset", (True, False)),
        Operation("step"),
    ):
        assert Operation.from_json(operation.to_json()) == operation


def test_the_same_seed_and_operations_give_the_same_findings(tmp_path: Path) -> None:
    module = documented.load(tmp_path, "shrunk_seed", ABORT_RAISES)
    budget = Budget(seconds=None, operations=3_000)
    one, other = (search(module.MyTarget, budget, seed=3) for _ in range(2))
    assert [f.failure.operations for f in one.findings] == [
        f.failure.operations for f in other.findings
    ]
    assert one.operations == other.operations
    assert one.findings
