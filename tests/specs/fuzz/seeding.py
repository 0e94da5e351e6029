"""What a seeded fault is, and how one is put into a list of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvproof.specs.fuzz.target import Target

from ...reference.target import ObservedEngine, ReferenceTarget


@dataclass(frozen=True)
class Seeded:
    """A fault, and what has to find it."""

    name: str
    rules: frozenset[str]
    engine: type[ObservedEngine]
    connector: str | None = None  # None: whichever the search draws
    seed: int = 5  # another one where that is quicker

    def target(self) -> type[Target]:
        """The faulty engine as a target."""
        body = {"engine_class": self.engine}
        return type(f"Faulty{self.engine.__name__}", (ReferenceTarget,), body)


def seeding(
    faults: list[Seeded],
) -> Callable[..., Callable[[type[ObservedEngine]], type[ObservedEngine]]]:
    """A decorator that puts an engine into `faults`; its docstring is the fault."""

    def seeded(
        *rules: str, connector: str | None = None, seed: int = 5
    ) -> Callable[[type[ObservedEngine]], type[ObservedEngine]]:
        def register(engine: type[ObservedEngine]) -> type[ObservedEngine]:
            assert engine.__doc__ is not None
            name = engine.__doc__.rstrip(".")
            faults.append(Seeded(name, frozenset(rules), engine, connector, seed))
            return engine

        return register

    return seeded
