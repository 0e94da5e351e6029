"""The declaration broken everywhere, once at a time: what differs is noticed."""

from __future__ import annotations

from collections import Counter

import pytest
from kvproof.specs.check import Report, standard
from kvproof.specs.check import score as module
from kvproof.specs.check.declaration import Edit
from kvproof.specs.check.mutants import Mutant, mutants
from kvproof.specs.check.score import EQUIVALENT, IMPORT, SURVIVES, sample, score

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
@pytest.mark.parametrize("seed", range(4))
def test_no_mutant_of_a_large_sample_survives(seed: int, proved: Report) -> None:
    fates = list(score(sample(EVERY, 100, seed)))
    assert [f"{fate.mutant.words}\n{fate.change}" for fate in fates if fate.by == SURVIVES] == []


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


def test_a_mutant_that_no_obligation_refutes_survives_by_name(
    proved: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    less = [each for each in module.OBLIGATIONS if each.id in ("S9", "P6")]
    monkeypatch.setattr(module, "OBLIGATIONS", less)
    mutant = _mutant(
        "reset.py", "    return tier_asked and refusing == 0\n", "    return tier_asked\n"
    )
    (fate,) = score([mutant])
    assert fate.by == SURVIVES
    assert "return tier_asked" in str(fate.change)
