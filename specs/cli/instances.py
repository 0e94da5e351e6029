"""The options that describe a finite instance, shared by `explore` and `export`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from ..explore.instance import DEFAULT_FEATURES, Feature, Instance, InstanceError

NAMES = ", ".join(feature.value for feature in Feature)

Requests = Annotated[int, typer.Option(help="Requests.")]
Blocks = Annotated[int, typer.Option(help="Blocks in the pool.")]
Transfers = Annotated[int, typer.Option(help="Transfers that may exist at once.")]
BlockSize = Annotated[int, typer.Option(help="Tokens in a block.")]
Length = Annotated[int, typer.Option(help="The model's length, in tokens.")]
Prompt = Annotated[int, typer.Option(help="Tokens of every prompt.")]
Chunk = Annotated[int, typer.Option(help="Tokens of every chunk of a session.")]
StepsAhead = Annotated[int, typer.Option(help="Steps in flight at once.")]
With = Annotated[
    list[str] | None,
    typer.Option("--with", metavar="FEATURE", help=f"Allow one thing more: {NAMES}. Repeatable."),
]
Without = Annotated[
    list[str] | None,
    typer.Option("--without", metavar="FEATURE", help="Leave out one thing. Repeatable."),
]

DEFAULTS = Instance()


def instance_of(
    *, with_: Sequence[str] | None, without: Sequence[str] | None, **sizes: int
) -> Instance:
    """The instance that the options describe. BadParameter says what would be right."""
    added, removed = _features(with_), _features(without)
    if both := ", ".join(sorted(feature.value for feature in added & removed)):
        raise typer.BadParameter(f"{both} is both asked for and left out")
    try:
        return Instance(features=(DEFAULT_FEATURES | added) - removed, **sizes)
    except InstanceError as error:
        raise typer.BadParameter(str(error)) from error


def _features(names: Sequence[str] | None) -> frozenset[Feature]:
    try:
        return frozenset(Feature(name) for name in names or ())
    except ValueError as error:
        raise typer.BadParameter(f"{error}; known are {NAMES}") from error
