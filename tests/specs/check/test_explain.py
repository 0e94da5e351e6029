"""`--explain`: what is printed says something, and reads as it is meant."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from functools import cache
from html import unescape
from typing import Any

import pytest
import z3
from kvproof.specs.check.conditions import Condition
from kvproof.specs.check.explain import explained, readable, statement, statements
from kvproof.specs.check.obligations import BY_ID, OBLIGATIONS
from kvproof.specs.check.pretty import pretty
from kvproof.specs.check.proofs import Proofs
from kvproof.specs.check.report import as_dict
from kvproof.specs.check.run import Report
from kvproof.specs.report import details, page
from kvproof.specs.symbolic import terms

_REFLEXIVE = {z3.Z3_OP_EQ, z3.Z3_OP_LE, z3.Z3_OP_GE, z3.Z3_OP_LT, z3.Z3_OP_GT, z3.Z3_OP_IMPLIES}


@pytest.fixture(scope="module")
def proofs(proved: Report) -> Proofs:
    """Of the declaration, readable; after `proved`, which has decided what it asks."""
    return readable()


@pytest.fixture(scope="module")
def stated(proofs: Proofs) -> dict[str, dict[str, Condition]]:
    """By obligation and words, the condition that is shown."""
    return {
        each.id: {words: first for (_, words), (first, *_) in statements(proofs, each).items()}
        for each in OBLIGATIONS
    }


@pytest.fixture(scope="module")
def written(stated: dict[str, dict[str, Condition]]) -> Callable[[str], str]:
    """All that is stated under an id, for people."""

    @cache
    def of(name: str) -> str:
        return "\n".join(pretty(statement(each)) for each in stated[name].values())

    return of


def says_nothing(formula: Any) -> bool:
    """It is `true`, ends in `→ true`, or somewhere compares a term with itself."""
    if terms.as_constant(formula) is True:
        return True
    return any(
        each.decl().kind() in _REFLEXIVE
        and (each.arg(0).eq(each.arg(1)) or (z3.is_implies(each) and z3.is_true(each.arg(1))))
        for each in terms.subterms([formula])
        if each.num_args() == 2
    )


@pytest.mark.parametrize("name", [each.id for each in OBLIGATIONS])
def test_no_statement_that_is_explained_is_a_tautology(
    stated: dict[str, dict[str, Condition]], name: str
) -> None:
    assert stated[name]
    assert not [words for words, shown in stated[name].items() if says_nothing(statement(shown))]


def test_a_statement_put_down_for_no_change_would_be_seen_as_a_tautology(
    stated: dict[str, dict[str, Condition]],
) -> None:
    first = stated["S7"]["the epoch never comes back"]
    assert first.about == "no change"
    assert says_nothing(first.goal)
    assert not says_nothing(statement(first))
    assert says_nothing(terms.TRUE)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("S1", "(e' = e) ∧ (ask' = ask)"),
        ("S2", "(b.cached' ∧ (b.hashed_as' = b.hashed_as))"),
        ("S2", "(¬b.cached' ∧ (b.quarantined' > b.quarantined))"),
        ("S3", "(b.count' - b.count) = ([held.by_request'] + "),
        ("S3", "others.store' - ([held.by_request] + "),
        ("S7", "e.epoch' ≥ e.epoch"),
        ("S9", "row 4 decides ↔ yes"),
        ("S9", "b.count' = (b.count + 1)"),
        ("S9", "¬add goes → ((r' = r) ∧ (e' = e) ∧ (ask' = ask) ∧ it commands nothing)"),
    ],
)
def test_a_statement_about_a_change_has_primes(
    written: Callable[[str], str], name: str, line: str
) -> None:
    assert line in written(name)


def test_the_page_shows_the_same_formulas(proofs: Proofs, proved: Report) -> None:
    report = as_dict(proved, {}) | details(proved, {})
    lines = list(explained(proofs, BY_ID["S7"]))
    text = re.sub(r"<[^>]*>", "", page(report, {"S7": lines}))
    assert "e.epoch' ≥ e.epoch" in unescape(text)
    assert "e.epoch ≥ e.epoch" not in unescape(text)


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "·": lambda left, right: left * right,
    "div": lambda left, right: left / right,
    "mod": lambda left, right: left % right,
}


def _read(text: str) -> int:
    """What arithmetic with the usual precedence makes of it, for a = 29, b = 7 and c = 3."""
    for sign, operator in (("·", "*"), (" div ", "//"), (" mod ", "%")):
        text = text.replace(sign, operator)
    return int(eval(text, {"__builtins__": {}}, {"a": 29, "b": 7, "c": 3}))


@pytest.mark.parametrize(("outer", "inner"), itertools.product(_OPERATORS, repeat=2))
def test_a_formula_reads_as_it_is_meant(outer: str, inner: str) -> None:
    a, b, c = z3.Ints("a b c")
    values = [(each, z3.IntVal(value)) for each, value in ((a, 29), (b, 7), (c, 3))]
    over, under = _OPERATORS[outer], _OPERATORS[inner]
    for term in (over(a, under(b, c)), over(under(a, b), c), over(-under(a, b), c)):
        meant = z3.simplify(z3.substitute(term, *values))
        assert _read(pretty(term)) == meant.as_long(), pretty(term)


def test_a_subtracted_sum_keeps_its_parentheses_and_a_sum_needs_none() -> None:
    a, b, c = z3.Ints("a b c")
    assert pretty(a - (b + c)) == "a - (b + c)"
    assert pretty((a + b) - c) == "a + b - c"
    assert _read("a - b + c") != _read("a - (b + c)")
