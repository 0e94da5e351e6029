"""What becomes of a launched step: the device ends it, and its rows are settled."""

from __future__ import annotations

from collections.abc import Iterator

from ...statemachine.states import (
    FINISHED_LENGTH_CAPPED,
    FINISHED_STOPPED,
    OUTPUT,
    PUBLISH,
    STEP_PROCESSED,
    STOP,
)
from . import expressions as ex
from .action import Action, Body, Party
from .instance import Feature, Instance
from .joint import finish_settling, request_event
from .scheduling import known_tokens
from .world import World


def step_actions(instance: Instance) -> Iterator[Action]:
    """The device ends the oldest step; then its rows are settled, in any order."""
    yield Action("process", Party.DEVICE, "engine", process)
    for r in range(instance.requests):
        yield Action("settle", Party.ENGINE, f"r{r}", _settle(r, stop=False), settling=True)
        if instance.has(Feature.STOPS):
            told = (("stop", True),)
            yield Action("settle", Party.ENGINE, f"r{r}", _settle(r, stop=True), told, True)


def process(w: World) -> None:
    """The oldest step is processed: its STEP holds end. Its rows are settled before all else."""
    s = w.state
    step = s.e.processed + 1
    w.require(w.fire("engine", STEP_PROCESSED, s.e, w.record("EngineAsk", step=step)).went)
    ends = w.declaration.function("blocks", "step_processed")
    for pairs in s.held:
        for held, block in zip(pairs, s.blocks, strict=True):
            w.run(ends, step=step, h=held, b=block)
    s.phase.settling = True
    finish_settling(w)


def _settle(r: int, *, stop: bool) -> Body:
    """One row of the processed step: its blocks are published, its token is delivered."""

    def body(w: World) -> None:
        s = w.state
        request, work, step = s.requests[r], s.work[r], s.e.processed
        tokens, samples = work.tokens(1), work.samples(1)
        w.require(tokens > 0)
        counts = ex.both(request.covered > 0, step > request.stale_step)
        filled = (request.written + tokens) // w.instance.block_size
        published = request_event(w, r, PUBLISH, step=step, tokens=tokens, blocks=filled)
        w.check("what is written can be published", ex.either(ex.no(counts), published.went))
        delivered = request.delivered
        output = request_event(w, r, OUTPUT, when=ex.truth(samples), step=step, tokens=1)
        w.check("delivered tokens are never taken back", request.delivered >= delivered)
        length = known_tokens(request)
        at_limit = ex.either(
            length >= w.instance.model_length,
            w.value(
                w.declaration.function("policy", "never_fits"),
                tokens=length,
                pool_blocks=w.instance.blocks,
                quarantined=s.e.quarantined,
                block_size=w.instance.block_size,
            ),
        )
        if stop:
            w.require(output.went, ex.no(at_limit))
        ends = ex.both(output.went, ex.either(at_limit, stop))
        request_event(
            w,
            r,
            STOP,
            when=ends,
            step=step,
            reason=FINISHED_STOPPED if stop else FINISHED_LENGTH_CAPPED,
            at_limit=at_limit,
            tokens=w.instance.chunk,
        )
        work.tokens1, work.samples1 = 0, False  # type: ignore[attr-defined]
        finish_settling(w)

    return body
