"""The declaration broken everywhere, once at a time: what differs is noticed."""

from __future__ import annotations

import linecache
import os
from collections import Counter
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from kvproof.specs.check import Change, Declaration, Report, standard
from kvproof.specs.check import score as module
from kvproof.specs.check.declaration import Edit
from kvproof.specs.check.functions import is_own
from kvproof.specs.check.memory import memory, passing
from kvproof.specs.check.mutants import Mutant, mutants
from kvproof.specs.check.obligations import BY_ID
from kvproof.specs.check.report import as_dict
from kvproof.specs.check.score import EQUIVALENT, IMPORT, SURVIVES, Fate, sample, score
from kvproof.specs.check.system import ENUMS
from kvproof.specs.check.workers import spread
from kvproof.specs.cli import check as check_command
from kvproof.specs.cli import exits, main
from kvproof.specs.cli import mutants as command

EVERY = mutants(standard().sources)


def test_there_are_at_least_300_mutants_of_every_operator_and_no_two_are_alike() -> None:
    assert len(EVERY) >= 300
    edits = {(each.edit.file, each.edit.start, each.edit.end, each.edit.new) for each in EVERY}
    assert len(edits) == len(EVERY)
    operators = Counter(each.operator for each in EVERY)
    assert set(operators) == {
        "drop guard", "negate guard", "drop effect", "double effect", "misdirect effect",
        "wrong source", "wrong destination", "wrong answer", "drop conjunct", "turn comparison",
        "off by one", "drop statement", "wrong command",
    }  # fmt: skip
    assert min(operators.values()) >= 20


def test_a_sample_is_the_same_for_the_same_seed() -> None:
    assert sample(EVERY, 10, 3) == sample(EVERY, 10, 3)
    assert sample(EVERY, 10, 3) != sample(EVERY, 10, 4)


def test_no_mutant_of_a_small_sample_survives(proved: Report) -> None:
    fates = list(score(sample(EVERY, 12, 5)))
    assert [fate.mutant.words for fate in fates if fate.by == SURVIVES] == []
    assert len({fate.by for fate in fates}) > 1


@pytest.mark.long
def test_no_mutant_survives(proved: Report) -> None:
    fates = list(score(EVERY))
    assert [f"{fate.mutant.words}\n{fate.change}" for fate in fates if fate.by == SURVIVES] == []
    assert len(fates) == len(EVERY)


def _mutant(file: str, old: str, new: str) -> Mutant:
    start = standard().sources[file].index(old)
    return Mutant("by hand", new, Edit(file, start, start + len(old), new))


def test_a_mutant_is_equivalent_only_where_the_effects_are_proved_equal(proved: Report) -> None:
    same = _mutant("request_effects.py", "    r.hashed = x.blocks\n    return MAKE_HITS\n",
                   "    r.hashed = x.blocks + 0\n    return MAKE_HITS\n")  # fmt: skip
    other = _mutant("request_effects.py", "    r.hashed = x.blocks\n    return MAKE_HITS\n",
                    "    r.hashed = x.blocks + 1\n    return MAKE_HITS\n")  # fmt: skip
    none = _mutant("request.py", "Row(E.ADD, (UNKNOWN,), WAITING", "Row(E.ADD, (), WAITING")
    fates = [fate.by for fate in score([same, other, none])]
    assert fates == [EQUIVALENT, "S9", IMPORT]


def _tier_is_cleared_too_early(monkeypatch: pytest.MonkeyPatch) -> Mutant:
    """A mutant, and no obligation but P6, which does not speak of it."""
    monkeypatch.setattr(module, "OBLIGATIONS", [BY_ID["P6"]])
    monkeypatch.setattr(module, "FIRST", "P6")
    return _mutant(
        "reset.py", "    return tier_asked and refusing == 0\n", "    return tier_asked\n"
    )


def test_a_mutant_that_no_obligation_refutes_survives_by_name(
    proved: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    (fate,) = score([_tier_is_cleared_too_early(monkeypatch)])
    assert fate.by == SURVIVES
    assert "return tier_asked" in str(fate.change)


def test_what_no_obligation_refutes_is_looked_at_in_other_ways(
    proved: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = []

    def sees_nothing(declaration: Declaration) -> None:
        looked_at.append(declaration)

    def sees_it(declaration: Declaration) -> tuple[str, str] | None:
        early = declaration.function("reset", "clears_tier")(1, True)
        return ("a reader", "the tier is cleared too early") if early else None

    mutant = _tier_is_cleared_too_early(monkeypatch)
    (fate,) = score([mutant], witnesses=(sees_nothing, sees_it))
    assert (fate.by, fate.broken) == ("a reader", "the tier is cleared too early")
    assert [each.change for each in looked_at] == [fate.change]


def test_forked_workers_find_the_same_fates_in_the_same_order(proved: Report) -> None:
    chosen = sample(EVERY, 5, 2)
    assert list(score(chosen, jobs=2)) == list(score(chosen))


def test_a_worker_that_ends_without_its_result_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="without its result"):
        list(spread(os._exit, [3, 3], jobs=2))


def test_nothing_is_kept_of_a_copy_that_passes(proved: Report) -> None:
    before = len(linecache.cache)
    with passing():
        remembered = memory()
        changed = standard().edited(_mutant("blocks.py", "b.count == 0", "b.count == 1").edit)
        assert len(linecache.cache) > before
    assert changed.change is not None
    assert len(linecache.cache) == before
    assert remembered == {}


def test_every_function_is_run_by_a_cell_or_looked_at_by_itself() -> None:
    reached: set[object] = set()

    def follow(function: FunctionType) -> None:
        if function not in reached:
            reached.add(function)
            for name in function.__code__.co_names:
                called = function.__globals__.get(name)
                if isinstance(called, FunctionType):
                    follow(called)

    for machine, (states, events) in ENUMS.items():
        for state in states:
            for event in events:
                follow(standard().machine(machine).cell(int(state), int(event)))
    compared = {"blocks", "policy", "lanes", "reset", "request"}
    for file in {each.edit.file for each in EVERY}:
        name = file.removesuffix(".py")
        own = [each for each in vars(standard().modules[name]).values() if is_own(each, name)]
        assert own
        assert name in compared or set(own) <= reached, name


@pytest.fixture
def reported(proved: Report, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the command reports of the declaration itself, proved here once for all tests."""
    report = as_dict(proved, {}, None)
    monkeypatch.setattr(check_command, "_report", lambda asked, **_: (report, False))
    monkeypatch.setenv("COLUMNS", "160")
    return report


def test_the_command_proves_first_and_then_counts_who_noticed(
    reported: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.xml"
    assert main(["check", "--mutants", "--sample", "4", "--junit", str(file)]) == exits.OK
    printed = capsys.readouterr().out
    assert f"4 of {len(EVERY)} mutants: " in printed
    assert "0 survive: 100.0 % of those that differ" in printed
    assert printed.index("Not proved") < printed.index("mutants: ")
    assert 'name="no mutant of 4 survives" />' in file.read_text()


def test_the_command_names_survivors_and_fails(
    reported: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    fate = Fate(EVERY[0], Change("request.py", "what stood", "what stands"), SURVIVES)
    monkeypatch.setattr(command, "score", lambda chosen, **_: iter([fate]))
    file = tmp_path / "report.xml"
    asked = ["check", "--mutants", "--sample", "1", "--junit", str(file)]
    assert main(asked) == exits.FAILED
    printed = capsys.readouterr().out
    assert EVERY[0].words in printed
    assert "+ what stands" in printed
    assert "what stands" in file.read_text()


def test_a_declaration_that_is_not_proved_is_not_scored(
    reported: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_command, "mutation_score", None)
    reported["verdict"] = "unknown"
    assert main(["check", "--mutants"]) == exits.UNDECIDED


def test_mutants_of_one_obligation_are_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--mutants", "--id", "S1"]) == exits.USAGE
    assert "--id" in capsys.readouterr().err
