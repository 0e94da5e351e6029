"""`kvproof check --explain`: an obligation's formulas, readable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..symbolic import terms
from ..symbolic.terms import BoolTerm
from .conditions import Condition, Prover
from .contracts import CONTRACTS
from .declaration import standard
from .fairness import FAIRNESS
from .obligations import BY_ID, Obligation
from .pretty import pretty
from .proofs import Proofs
from .run import UnknownObligationError
from .state import View

#: Whom a line speaks of, in words.
_WHO = {"": "", "r": "each request: ", "t": "each transfer: ", "rt": "each request and transfer: "}


def explain(name: str) -> Iterator[str]:
    """Lines that say what is proved under an id, with which invariants, on which assumptions.

    Raises UnknownObligationError.
    """
    obligation = BY_ID.get(name.upper())
    if obligation is None:
        raise UnknownObligationError(name)
    yield from explained(readable(), obligation)


def explain_each(names: Iterable[str]) -> dict[str, list[str]]:
    """The same for several ids, which are known ones."""
    proofs = readable()
    return {name: list(explained(proofs, BY_ID[name])) for name in names}


def readable() -> Proofs:
    """The proofs of the declaration with formulas for people: what is executed has a name."""
    proofs = Proofs(standard(), Prover())
    proofs.moves  # noqa: B018 - executed, before formulas become readable
    proofs.variables.readable = True
    return proofs


def statement(condition: Condition) -> BoolTerm:
    """What a condition states, before an action's values were put in."""
    return condition.goal if condition.template is None else condition.template


def statements(
    proofs: Proofs, obligation: Obligation
) -> dict[tuple[str, str], tuple[Condition, ...]]:
    """The obligation's own conditions, together if they have the same words."""
    found: dict[tuple[str, str], list[Condition]] = {}
    for condition in obligation.own(proofs):
        found.setdefault((condition.part, condition.words), []).append(condition)
    return {words: tuple(conditions) for words, conditions in found.items()}


def explained(proofs: Proofs, obligation: Obligation) -> Iterator[str]:
    """The lines about one obligation, of readable proofs."""
    yield f"{obligation.id}: {obligation.statement}"
    yield f"method: {obligation.method}"
    seen: set[str] = set()
    invariants = [line for line in proofs.lines if line.invariant.of == obligation.id]
    if invariants:
        yield "\ninvariants (each holds at the start, and is kept by every action):"
    for line in invariants:
        if line.invariant.words not in seen:
            seen.add(line.invariant.words)
            yield f"  {_WHO[line.invariant.about]}{line.invariant.words}"
            yield f"      {pretty(line.formula)}"
    yield "\nstatements (each follows from all invariants, or holds of every action it names):"
    for (part, words), (first, *others) in statements(proofs, obligation).items():
        yield f"  {part}: {words}"
        if first.hypotheses.formula is not terms.TRUE:
            yield f"      {pretty(statement(first))}"
            continue
        # Of code alone: the formula is of the place that it names.
        yield f"      {first.about}: {pretty(statement(first))}"
        if others:
            yield f"      and so for {len(others)} more"
    needs = [each for each in FAIRNESS if obligation.id in each.for_whom]
    if needs:
        yield "\nfairness:"
        for each in needs:
            yield f"  {each.name}: {each.words}"
    yield "\na prime marks the state after the action; the records are those of check/state.py"
    yield "what events are told is true:"
    view = View(proofs.variables, {})
    for contract in CONTRACTS:
        yield f"  {contract.name}: {contract.words}"
        yield f"      {pretty(contract.formula(view))}"
