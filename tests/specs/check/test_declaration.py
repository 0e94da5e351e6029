"""A changed copy of the declaration is real, private, and refused when it is none."""

from __future__ import annotations

import sys

import pytest
from kvproof.specs.check.declaration import Change, standard
from kvproof.statemachine import RequestFacts, SpecificationError
from kvproof.statemachine.request_effects import let_go

FORGETS = Change(
    "request_effects.py",
    "    r.covered = 0\n    if in_flight",
    "    r.covered = 1\n    if in_flight",
)


def test_a_changed_copy_runs_the_change_and_the_original_does_not() -> None:
    changed = standard().changed(FORGETS)
    for function, covered in ((changed.function("request_effects", "let_go"), 1), (let_go, 0)):
        record = RequestFacts(covered=3)
        engine = changed.modules["facts"].EngineFacts()
        function(record, engine, None)
        assert record.covered == covered


def test_a_changed_copy_leaves_nothing_behind_among_the_imported_modules() -> None:
    before = set(sys.modules)
    changed = standard().changed(FORGETS)
    assert changed.root != standard().root
    assert set(sys.modules) == before


def test_a_changed_copy_shares_what_the_change_cannot_reach() -> None:
    original, changed = standard(), standard().changed(FORGETS)
    own = {name for name in original.modules if changed.modules[name] is not original.modules[name]}
    assert own == {"request_effects", "request"}
    assert changed.machine("transfer") is original.machine("transfer")
    assert changed.machine("request") is not original.machine("request")


def test_functions_that_join_events_with_blocks_call_the_copy() -> None:
    change = Change("blocks.py", "    if may_drop(b):", "    if not may_drop(b):")
    joined = standard().changed(change).modules["joined"]
    assert joined.publish.__module__ != standard().modules["joined"].publish.__module__


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (Change("request.py", "no such text", ""), "0 times"),
        (Change("request.py", "Row(E.ADMIT", "Row(E.ADMIT"), "not once"),
        (Change("nowhere.py", "x", "y"), "0 times"),
        (Change("reset.py", "    return refusing == 0\n", "    return (\n"), "load"),
        (
            Change(
                "request.py",
                "Row(E.GRAMMAR_READY, (GRAMMAR,), WAITING, why=\"the grammar is compiled\"),",
                "",
            ),
            "no row for every case",
        ),
    ],
)  # fmt: skip
def test_a_change_that_is_no_declaration_is_refused(change: Change, words: str) -> None:
    with pytest.raises(SpecificationError, match=words):
        standard().changed(change)
