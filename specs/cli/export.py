"""`kvproof export`: a finite instance of the declaration as a Promela model."""

from pathlib import Path
from typing import Annotated

import typer

from ..check.declaration import standard
from ..explore.compiled import System
from ..explore.promela import promela
from . import exits
from . import instances as options
from .instances import DEFAULTS, instance_of
from .paths import writable


def command(
    to: Annotated[
        Path,
        typer.Option("--promela", callback=writable, help="Write a Promela model for Spin here."),
    ],
    requests: options.Requests = DEFAULTS.requests,
    blocks: options.Blocks = DEFAULTS.blocks,
    transfers: options.Transfers = DEFAULTS.transfers,
    block_size: options.BlockSize = DEFAULTS.block_size,
    length: options.Length = DEFAULTS.model_length,
    prompt: options.Prompt = DEFAULTS.prompt,
    chunk: options.Chunk = DEFAULTS.chunk,
    steps_ahead: options.StepsAhead = DEFAULTS.steps_ahead,
    with_: options.With = None,
    without: options.Without = None,
    invariants: Annotated[bool, typer.Option(help="Assert the invariants after each step.")] = True,
) -> int:
    """Write a finite instance of the declaration as a Promela model.

    Check it with: spin -a MODEL && gcc -O2 -DSAFETY -DNOREDUCE -o pan pan.c && ./pan -m10000000
    """
    instance = instance_of(
        with_=with_,
        without=without,
        requests=requests,
        blocks=blocks,
        transfers=transfers,
        block_size=block_size,
        model_length=length,
        prompt=prompt,
        chunk=chunk,
        steps_ahead=steps_ahead,
    )
    to.write_text(promela(System(instance, standard()), invariants=invariants))
    typer.echo(f"{to}: {instance}")
    return exits.OK
