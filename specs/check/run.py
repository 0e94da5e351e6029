"""Runs the proofs: collects the conditions, decides them, says what became of each obligation."""

from __future__ import annotations

import hashlib
import platform
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import z3

from ...statemachine.answers import Answer
from ..symbolic import terms
from . import conditions as _conditions
from .cache import Cache
from .conditions import DEFAULT_BUDGET, Condition, Decided, Prover, Verdict, worst
from .declaration import Declaration, standard
from .fairness import NoWitnessError, joint_witness
from .obligations import BY_ID, OBLIGATIONS, Obligation
from .proofs import Proofs
from .search import DEPTH, rows_taken

#: Told of the progress: how many conditions are decided, of how many, and what is going on.
Progress = Callable[[int, int, str], None]

INDUCTIVE = ("initiation", "consecution")


@dataclass(frozen=True)
class Finding:
    """What became of one obligation."""

    obligation: Obligation
    verdict: Verdict
    #: Conditions by part: initiation, consecution, property, and the names of the premises.
    parts: dict[str, int]
    #: Consecution conditions that hold because nothing that they mention is written.
    framed: int
    seconds: float
    failures: tuple[Decided, ...] = ()
    rests_on: tuple[str, ...] = ()

    @property
    def conditions(self) -> int:
        """How many conditions the solver was asked."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class Emptiness:
    """Something that can never be, so that what is said of it is said of nothing."""

    what: str


@dataclass(frozen=True)
class Report:
    """What became of everything that was asked."""

    findings: tuple[Finding, ...]
    vacuous: tuple[Emptiness, ...]
    #: Hypotheses of which the solver could not say within its budget whether they can hold.
    unsure: int
    #: Ways in which an action can go, and rows that go.
    moves: int
    rows: int
    seconds: float
    # Not in the repr: their formulas are megabytes of text, and pytest prints a repr on failure.
    proofs: Proofs | None = field(default=None, repr=False)
    #: Every condition with its verdict, those of vacuity included.
    decided: tuple[Decided, ...] = field(default=(), repr=False)

    @property
    def verdict(self) -> Verdict:
        """Of everything together; vacuity is not a verdict, see `vacuous`."""
        unsure = [Verdict.UNKNOWN] if self.unsure else []
        return worst([*unsure, *(finding.verdict for finding in self.findings)])


class UnknownObligationError(ValueError):
    """An id that names no obligation."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no obligation {name}; there are {', '.join(BY_ID)}")


def check(
    declaration: Declaration | None = None,
    *,
    ids: Sequence[str] = (),
    budget: int = DEFAULT_BUDGET,
    cache: Cache | None = None,
    progress: Progress | None = None,
) -> Report:
    """Prove the obligations with these ids (all, if none is named) of a declaration.

    A proof assumes the lines of all obligations, so one that would be proved has those of the
    others decided too: it rests on the obligations whose lines do not hold.

    Raises UnknownObligationError for an id that there is not; SymbolicError where a function of
    the declaration cannot be executed symbolically.
    """
    tell: Progress = progress or (lambda done, total, what: None)
    chosen = list(dict.fromkeys(map(_named, ids))) or list(OBLIGATIONS)
    started = time.perf_counter()
    prover = Prover(budget, cache)
    proofs = Proofs(declaration or standard(), prover)
    tell(0, 0, "executing the declaration")
    spent: dict[str, float] = defaultdict(float)
    asked: list[Condition] = []
    for obligation in chosen:
        since = time.perf_counter()
        asked += obligation.conditions(proofs)
        spent[obligation.id] += time.perf_counter() - since
    asked += _satisfiable(asked)
    decided = _decide(prover, asked, spent, tell)
    if _leans(decided):
        decided += _decide(prover, list(_beneath(chosen, proofs)), spent, tell)
    if cache is not None:
        cache.save()
    hypotheses = [each for each in decided if each.condition.obligation == ""]
    vacuous = [
        Emptiness(f"{each.condition.words} ({each.condition.about})")
        for each in hypotheses
        if each.verdict is Verdict.REFUTED
    ]
    unsure = sum(each.verdict is Verdict.UNKNOWN for each in hypotheses)
    moves = proofs.moves if proofs.has_moves else ()
    if proofs.has_moves:
        vacuous += _never_taken(proofs)
    if not ids:
        tell(len(asked), len(asked), "looking for scripts that take each row")
        vacuous += _never_reached(proofs)
    findings = _findings(chosen, decided, proofs, spent)
    rows = sum(
        1
        for machine in ("request", "transfer", "engine")
        for _ in proofs.declaration.machine(machine).table.go_rows()
    )
    return Report(
        findings,
        tuple(vacuous),
        unsure,
        len(moves),
        rows,
        time.perf_counter() - started,
        proofs,
        tuple(decided),
    )


def run_key(declaration: Declaration, ids: Sequence[str], budget: int) -> str:
    """Names a whole run: the sources of what is proved and of what proves, solver and budget."""
    folder = Path(_conditions.__file__).parent
    sources = sorted([*folder.glob("*.py"), *(folder.parent / "symbolic").glob("*.py")])
    text = hashlib.sha256()
    for path in sources:
        text.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    parts = (
        declaration.digest,
        text.hexdigest(),
        z3.get_version_string(),
        platform.python_version(),
        str(budget),
        ",".join(ids),
    )
    return "\0".join(parts)


def _named(name: str) -> Obligation:
    obligation = BY_ID.get(name.upper())
    if obligation is None:
        raise UnknownObligationError(name)
    return obligation


def _satisfiable(asked: Iterable[Condition]) -> list[Condition]:
    """For each set of hypotheses that is no action's: it can be satisfied."""
    seen: dict[int, Condition] = {}
    for condition in asked:
        if condition.transition is None:
            seen.setdefault(id(condition.hypotheses), condition)
    return [
        Condition(
            "",
            "vacuity",
            f"the hypotheses of {condition.obligation} hold nowhere: {condition.words}",
            condition.part,
            condition.hypotheses,
            terms.TRUE,
            possible=True,
        )
        for condition in seen.values()
    ]


def _decide(
    prover: Prover, asked: Sequence[Condition], spent: dict[str, float], tell: Progress
) -> list[Decided]:
    """Decide all conditions, those with the same hypotheses one after the other."""
    groups: dict[int, list[Condition]] = {}
    for condition in asked:
        groups.setdefault(id(condition.hypotheses), []).append(condition)
    decided: list[Decided] = []
    for group in groups.values():
        for condition in group:
            since = time.perf_counter()
            decided.append(prover.decide_one(condition))
            spent[condition.obligation] += time.perf_counter() - since
        tell(len(decided), len(asked), group[-1].about)
    return decided


def _leans(decided: Sequence[Decided]) -> bool:
    """Whether some obligation would be proved, by means of the invariant."""
    failed = {each.condition.obligation for each in decided if each.verdict is not Verdict.PROVED}
    done = [each for each in decided if each.condition.obligation not in {"", *failed}]
    return _uses_invariant(done)


def _beneath(chosen: Sequence[Obligation], proofs: Proofs) -> Iterator[Condition]:
    """That the lines of all other obligations are invariants too: a proof assumes every line."""
    for obligation in OBLIGATIONS:
        if obligation not in chosen:
            yield from proofs.initiation(obligation.id)
            yield from proofs.consecution(obligation.id)


def _never_taken(proofs: Proofs) -> list[Emptiness]:
    """Rows that go in no state that the invariant allows."""
    taken = {(call.machine, call.row) for move in proofs.moves for call in move.transition.calls}
    found = []
    for machine in ("request", "transfer", "engine"):
        table = proofs.declaration.machine(machine).table
        for number, row in table.go_rows():
            if (machine, number) not in taken and (machine, row.trigger.name) not in _FOLLOWING:
                found.append(
                    Emptiness(
                        f"the {machine}'s row {number} ({row.trigger.name.lower()}: {row.why}) "
                        f"answers {Answer.GO.name} and can never be taken"
                    )
                )
    return found


def _never_reached(proofs: Proofs) -> list[Emptiness]:
    """Rows that no script of a tiny instance takes, and a run without which fairness is empty."""
    taken = rows_taken(proofs.declaration)
    found = [
        Emptiness(
            f"no script of at most {DEPTH} events takes the {machine}'s row {number} "
            f"({row.trigger.name.lower()}: {row.why})"
        )
        for machine in ("request", "transfer", "engine")
        for number, row in proofs.declaration.machine(machine).table.go_rows()
        if (machine, number) not in taken
    ]
    try:
        joint_witness(proofs.declaration)
    except NoWitnessError as error:
        found.append(Emptiness(f"the fairness assumptions have no run in common: {error}"))
    return found


#: Events that only follow from others, and are merged into them (see `Draft.follow`).
_FOLLOWING = {("transfer", "JOIN"), ("transfer", "LEAVE")}


def _findings(
    chosen: Sequence[Obligation],
    decided: Sequence[Decided],
    proofs: Proofs,
    spent: dict[str, float],
) -> tuple[Finding, ...]:
    mine: dict[str, list[Decided]] = defaultdict(list)
    for each in decided:
        mine[each.condition.obligation].append(each)
    # Of all obligations, not of the chosen ones: every line is assumed in every proof.
    broken = {
        each.condition.obligation
        for each in decided
        if each.verdict is not Verdict.PROVED and each.condition.part in INDUCTIVE
    }
    findings = []
    for obligation in chosen:
        results = mine[obligation.id]
        verdict = worst([each.verdict for each in results])
        used = _uses_invariant(results)
        rests = tuple(other for other in BY_ID if other in broken - {obligation.id}) if used else ()
        if verdict is Verdict.PROVED and rests:
            verdict = Verdict.RESTS
        findings.append(
            Finding(
                obligation,
                verdict,
                dict(Counter(each.condition.part for each in results)),
                proofs.framed.get(obligation.id, 0),
                spent[obligation.id],
                tuple(each for each in results if each.verdict is not Verdict.PROVED),
                rests,
            )
        )
    return tuple(findings)


def _uses_invariant(results: Sequence[Decided]) -> bool:
    return any(
        terms.as_constant(each.condition.hypotheses.formulas[0]) is not True for each in results
    )
