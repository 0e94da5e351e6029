"""The fuzzer as a Hypothesis state machine, for test suites: `stateful_test(MyTarget)`.

The same operations, generator and oracle as `kvproof fuzz`, with Hypothesis making the choices:
it shrinks what it finds, and its example database makes a test that failed once fail at once the
next time, so that runs in CI add up.
"""

from __future__ import annotations

import unittest
from collections.abc import Callable

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
)

from .findings import Finding
from .generation import WEIGHTS, Generator, plan
from .operations import FAULTS, Operation
from .pytest_writer import in_words
from .rules import RULES
from .run import Failure, Session
from .target import Target

#: An operation has one rule in the state machine for each so much of its weight (see `WEIGHTS`).
ONE_RULE = 4


class BrokenRuleError(AssertionError):
    """A rule of the oracle does not hold. `failure` is what `kvproof fuzz` would report."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        violation = failure.violation
        steps = "\n".join(
            f"  {number}. {in_words(operation)}"
            for number, operation in enumerate(failure.operations, 1)
        )
        finding = Finding(failure, 1, 0, 0, 0.0)
        super().__init__(
            f"{finding.title}\n"
            f"rule {violation.rule}: {RULES[violation.rule]}\n"
            f"{violation.message}\n"
            f"{failure.settings}\n{steps}"
        )


class _HypothesisDraw:
    """Hypothesis makes the choices."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def below(self, bound: int) -> int:
        return self._data.draw(st.integers(0, bound - 1)) if bound > 1 else 0


class EngineMachine(RuleBasedStateMachine):
    """Performs operations on a fresh engine; subclasses name the target."""

    target: type[Target]
    faults: bool = False

    def __init__(self) -> None:
        super().__init__()
        self.session: Session | None = None
        self.generator: Generator | None = None

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        draw = _HypothesisDraw(data)
        chosen = plan(draw, self.target, self.faults)
        self.generator = Generator(chosen, draw)
        self.session = Session(self.target, chosen.settings)

    def possible(self, name: str) -> bool:
        """Whether an operation makes sense now, in this run."""
        if self.session is None or self.generator is None:
            return False
        names = self.generator.possible(self.session.target, self.session.now)
        return any(name == possible for possible, _ in names)

    def perform(self, name: str, data: st.DataObject) -> None:
        """Draw the operation's arguments, perform it, and check every rule."""
        assert self.session is not None
        assert self.generator is not None
        self.generator.draw = _HypothesisDraw(data)
        self.check(self.session.apply(self.generator.make(name, self.session.now)))

    def check(self, failure: Failure | None) -> None:
        """Raise what was broken."""
        if failure is not None:
            raise BrokenRuleError(failure)

    def teardown(self) -> None:
        """What is under way must be able to end, and leave nothing held."""
        if self.session is None:
            return
        session, self.session = self.session, None
        try:
            if not session.broken:
                self.check(session.apply(Operation("drain")))
        finally:
            session.target.close()


def _rule_for(name: str) -> Callable[..., None]:
    def perform(self: EngineMachine, data: st.DataObject) -> None:
        self.perform(name, data)

    perform.__name__ = name
    return precondition(lambda self: self.possible(name))(rule(data=st.data())(perform))


def machine(target: type[Target], faults: bool = False) -> type[EngineMachine]:
    """The state machine of one target. `faults`: signals may also be lost and repeated."""
    names = [name for name in WEIGHTS if faults or name not in FAULTS]
    # Hypothesis chooses all possible rules equally often, so an operation that is to come more
    # often has several rules: above all steps, so that they overlap with everything else.
    rules = {
        f"{name}_{copy}" if copy else name: _rule_for(name)
        for name in names
        for copy in range(max(1, WEIGHTS[name] // ONE_RULE))
    }
    body = {"target": target, "faults": faults, **rules}
    return type(f"{target.__name__}Machine", (EngineMachine,), body)


def stateful_test(
    target: type[Target], *, faults: bool = False, examples: int = 100, steps: int = 40
) -> type[unittest.TestCase]:
    """A test class for an engine: assign it to a module's `TestSomething`, and pytest runs it.

    `examples` runs of at most `steps` operations each. Hypothesis' own settings and profiles
    apply to the rest.
    """
    from .pytest_plugin import chosen_budget

    examples, steps = chosen_budget(examples, steps)
    case: type[unittest.TestCase] = machine(target, faults).TestCase
    case.settings = settings(  # type: ignore[attr-defined]
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
    )
    case.__name__ = case.__qualname__ = f"Test{target.__name__}"
    return case
