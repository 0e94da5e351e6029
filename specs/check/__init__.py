"""Proofs of the declaration: for any number of requests, blocks and transfers.

    report = check()                                  # all obligations of what the engine runs
    report = check(standard().changed(change), ids=["S2"])

The order to read in: `obligations` (what is proved), `invariants` and `contents` (by means of
what), `contracts` and `fairness` (on which assumptions), `system` (of what: the actions, put
together from the declared functions), `proofs` and `conditions` (how). docs/proofs.md has the one
step that is on paper.
"""

from .conditions import Verdict
from .counterexample import Counterexample, counterexample, with_script
from .declaration import Change, Declaration, standard
from .obligations import OBLIGATIONS, Obligation
from .run import Finding, Report, UnknownObligationError, check

__all__ = [
    "OBLIGATIONS",
    "Change",
    "Counterexample",
    "Declaration",
    "Finding",
    "Obligation",
    "Report",
    "UnknownObligationError",
    "Verdict",
    "check",
    "counterexample",
    "standard",
    "with_script",
]
