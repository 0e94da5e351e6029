"""One exploration from start to end: search, promises, scripts of what was found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..check.declaration import Declaration, standard
from .backend import Backend
from .compiled import System
from .graph import Graph
from .instance import Instance
from .liveness import Assumption, Verdict, judge, promises_of
from .script import Replayed, Script, replay, script_of, steps_of
from .search import Found, Progress, Search


@dataclass
class Report:
    """What an exploration found."""

    instance: Instance
    symmetry: bool
    found: Found
    scripts: list[Script] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def refuted(self) -> bool:
        """Whether there is a counterexample."""
        return bool(self.scripts)


def explore(
    instance: Instance,
    declaration: Declaration | None = None,
    *,
    symmetry: bool = False,
    backend: Backend | None = None,
    most_states: int | None = None,
    most_levels: int | None = None,
    liveness: bool = True,
    without: Sequence[Assumption] = (),
    report: Callable[[Progress], None] | None = None,
) -> Report:
    """Search an instance, and ask for its promises if the search is complete.

    Raises InstanceError for an instance that does not fit.
    """
    system = System(instance, declaration or standard())
    search = Search(system, symmetry=symmetry, backend=backend)
    found = search.run(most_states=most_states, most_levels=most_levels, report=report)
    result = Report(instance, symmetry, found)
    if found.findings:
        result.scripts.append(script_of(search, found.findings[0]))
        return result
    promises = list(promises_of(instance)) if liveness and not symmetry else []
    if promises and found.complete:
        graph = Graph(search)
        for promise in promises:
            for dropped in without or (None,):
                verdict = judge(graph, promise, dropped)
                result.verdicts.append(verdict)
                if not verdict.kept:
                    result.scripts.append(_lasso_script(graph, verdict))
    return result


def _lasso_script(graph: Graph, verdict: Verdict) -> Script:
    """A lasso as a script: the way to it, and what is repeated."""
    search, lasso = graph.search, verdict.lasso
    assert lasso is not None
    numbers = {id(action): number for number, action in enumerate(search.system.actions)}
    before = [search.commands[command].action for command, _ in search.path_to(lasso.start)]
    stem = [graph.actions[graph.command[edge]] for edge in lasso.stem]
    cycle = [graph.actions[graph.command[edge]] for edge in lasso.cycle]
    run = [numbers[id(action)] for action in (*before, *stem, *cycle)]
    return Script(
        search.system.instance,
        verdict.promise.name,
        "on " + (", ".join(each.name for each in verdict.assumptions) or "no assumption"),
        steps_of(search.system, run),
        len(before) + len(stem),
    )


def replay_on_declaration(
    instance: Instance, labels: Sequence[str], declaration: Declaration | None = None
) -> Replayed:
    """Run a script on the real functions of a declaration, and check everything on the way."""
    return replay(System(instance, declaration or standard()), labels)
