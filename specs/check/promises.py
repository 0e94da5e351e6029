"""What every event of the three tables promises, written down independently of the tables.

A promise says in which states and under which condition an event goes, and then where it leads,
which facts it sets (all others stay), and what it commands; and how it is answered otherwise. S9
shows both directions: an event goes exactly when its promise says so, and does exactly that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...statemachine.answers import REJECT
from ..symbolic import terms
from ..symbolic.terms import BoolTerm, Term
from .state import View

Formula = Callable[[View], BoolTerm]
#: New values of the subject's facts, by field.
Sets = Callable[[View], Mapping[str, Term | int | bool]]
#: When each hold command is given; those not named never are.
Commands = Callable[[View], Mapping[int, BoolTerm]]


def always(s: View) -> BoolTerm:
    """Whatever the facts are."""
    return terms.TRUE


def never(s: View) -> BoolTerm:
    """Not whatever the facts are."""
    return terms.FALSE


def nothing(s: View) -> Mapping[str, Term | int | bool]:
    """No fact is set."""
    return {}


def silent(s: View) -> Mapping[int, BoolTerm]:
    """Nothing is commanded."""
    return {}


@dataclass(frozen=True)
class Case:
    """One way in which an event goes. `dest` None: the state stays."""

    sources: tuple[int, ...]
    dest: int | None = None
    when: Formula = always
    sets: Sets = nothing
    commands: Commands = silent


@dataclass(frozen=True)
class Promise:
    """All that one event may do.

    `elsewhere` is the answer in the states of which no case speaks. In the others it is REJECT
    where `rejects` holds, IGNORE where `ignores` does, and NOT_NOW where it does not go either.
    """

    event: int
    cases: tuple[Case, ...] = ()
    elsewhere: int = REJECT
    rejects: Formula = never
    ignores: Formula = never
