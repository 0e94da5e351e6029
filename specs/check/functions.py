"""The part of S9 about functions beside the tables: each does what it promises, and nothing else.

Every function of blocks, reset and policy, and the containers, on any arguments and any facts.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType
from typing import Any

from ..symbolic import terms
from ..symbolic.terms import BoolTerm, Term
from .conditions import Condition, Hypotheses
from .logic import both
from .promises_functions import FUNCTION_PROMISES, FunctionPromise, Given
from .proofs import Proofs
from .running import Effect, Running

#: Modules of which every public function promises something.
MODULES = ("blocks", "reset", "policy")
#: Parameters that are truth values, where they are no records.
TRUTHS = frozenset(
    {"wanted", "fresh", "kept", "writes", "resident", "force", "tier_asked", "tier_cleared",
     "wait_asked", "kind_is_load", "stalled"}
)  # fmt: skip


def functions(p: Proofs, nothing: Hypotheses) -> Iterator[Condition]:
    """Each function returns and sets what it promises."""

    def condition(words: str, about: str, goal: BoolTerm) -> Condition:
        return Condition("S9", "functions", words, about, nothing, goal)

    promised = {promise.key for promise in FUNCTION_PROMISES}
    for module in MODULES:
        for name, function in vars(p.declaration.modules[module]).items():
            if is_own(function, module) and (module, name) not in promised:
                yield condition("it promises something", f"{module}.{name}", terms.FALSE)
    for promise in FUNCTION_PROMISES:
        yield condition(
            "it does what it should, and nothing else",
            f"{promise.module}.{promise.name}",
            _kept(p, promise),
        )


def is_own(function: object, module: str) -> bool:
    """Whether it is a public function that this module itself defines."""
    return (
        isinstance(function, FunctionType)
        and function.__module__.endswith(f".{module}")
        and not function.__name__.startswith("_")
    )


def arguments(running: Running, function: Any) -> dict[str, Term]:
    """A variable for every parameter that is no record, by name."""
    code = function.__code__
    return {
        name: terms.variable(f"given.{name}", "bool" if name in TRUTHS else "int")
        for name in code.co_varnames[: code.co_argcount]
        if name != "h" and name not in running.records
    }


def effect_of(running: Running, function: Any) -> Effect:
    """What a function does with any arguments: records by their names, `h` are the holds."""
    held = {"h": running.records["held"]} if "h" in function.__code__.co_varnames else {}
    return running.effect_of(function, **arguments(running, function), **held)


def _kept(p: Proofs, promise: FunctionPromise) -> BoolTerm:
    function = p.declaration.function(promise.module, promise.name)
    effect = effect_of(p.running, function)
    x, s = Given(arguments(p.running, function)), p.state
    goals = [_returned(p, effect.result, promise.returns(x, s))]
    facts = promise.sets(x, s)
    for name in {**facts, **effect.writes}:
        before = s.value(*name.split("."))
        left: Any = facts.get(name, before)
        wanted = left if terms.is_term(left) else terms.constant(int(left), p.variables.kinds[name])
        goals.append(terms.equal(p.left(name, effect.writes.get(name, before)), wanted))
    return both(*goals)


def _returned(p: Proofs, found: Term | int | None, wanted: Term | None) -> BoolTerm:
    """It returns what is promised: a number, a truth value, or nothing."""
    if found is None or wanted is None:
        return terms.constant(found is None and wanted is None, "bool")
    if not terms.is_term(found):
        found = terms.constant(int(found), "bool" if isinstance(found, bool) else "int")
    if terms.kind_of(found) != terms.kind_of(wanted):
        return terms.FALSE
    if p.variables.readable:
        found = terms.variable("what it returns", terms.kind_of(wanted))
    return terms.equal(found, wanted)
