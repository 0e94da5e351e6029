"""`kvproof check --explain`: an obligation's formulas, readable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .conditions import Prover
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
    yield from _explained(_readable(), obligation)


def explain_each(names: Iterable[str]) -> dict[str, list[str]]:
    """The same for several ids, which are known ones."""
    proofs = _readable()
    return {name: list(_explained(proofs, BY_ID[name])) for name in names}


def _readable() -> Proofs:
    proofs = Proofs(standard(), Prover())
    proofs.moves  # noqa: B018 - executed, before formulas become readable
    proofs.variables.readable = True
    return proofs


def _explained(proofs: Proofs, obligation: Obligation) -> Iterator[str]:
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
    for condition in obligation.own(proofs):
        if condition.words in seen:
            continue
        seen.add(condition.words)
        yield f"  {condition.part}: {condition.words}"
        shown = condition.goal if condition.template is None else condition.template
        yield f"      {pretty(shown)}"
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
