"""Where the time of a decode step goes: the parts of a step, timed from outside.

Each part of the model is wrapped in a clock for the time of the profile. It reaches into the
runner on purpose: the product itself carries no clock.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

from ...runtime.llm import LLM
from ...runtime.sampling_params import SamplingParams
from .workload import Load

T = TypeVar("T")


class _Clock:
    """Seconds by part."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def around(self, part: str, call: Callable[..., T]) -> Callable[..., T]:
        """The same call, timed."""

        def timed(*args: Any, **kwargs: Any) -> T:
            started = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds[part] += time.perf_counter() - started

        return timed


class _Wrapped:
    """An object whose methods named in `parts` are timed."""

    def __init__(self, clock: _Clock, inner: Any, parts: dict[str, str]) -> None:
        for method, part in parts.items():
            setattr(self, method, clock.around(part, getattr(inner, method)))


def profile(engine: LLM, load: Load) -> dict[str, float]:
    """Milliseconds of a decode step by part, of a load of which only decode steps are counted."""
    runner: Any = engine.core.runner
    decoder = runner._decoder
    clock = _Clock()
    saved = (decoder._layers, decoder._lm_head, decoder._attention, decoder._operations)
    saved_sample, saved_execute = runner._sampler.sample, runner._execute
    steps: list[dict[str, float]] = []

    def execute(batch: Any) -> Any:
        clock.seconds.clear()
        started = time.perf_counter()
        try:
            return saved_execute(batch)
        finally:
            if len(batch.tokens) == len(batch.rows) == load.streams:
                steps.append({**clock.seconds, "step": time.perf_counter() - started})

    decoder._layers = [_timed_layer(clock, layer) for layer in saved[0]]
    decoder._lm_head = clock.around("product: lm_head", saved[1])
    decoder._attention = _Wrapped(
        clock, saved[2], {"plan": "attention plan", "attend": "attention"}
    )
    small = ("rms_norm", "add_rms_norm", "rotate_and_store")
    decoder._operations = _Wrapped(clock, saved[3], dict.fromkeys(small, "small operations"))
    runner._sampler.sample = clock.around("sampling", saved_sample)
    runner._execute = execute
    params = SamplingParams(temperature=0, max_tokens=load.output, ignore_eos=True)
    try:
        for _ in engine.stream(load.prompts(engine.model.config.vocab_size)[0], params):
            pass  # warm
        steps.clear()
        engine.generate(load.prompts(engine.model.config.vocab_size), params, progress=False)
    finally:
        decoder._layers, decoder._lm_head, decoder._attention, decoder._operations = saved
        runner._sampler.sample, runner._execute = saved_sample, saved_execute
    steps.sort(key=lambda step: step["step"])
    middle = steps[len(steps) // 4 : max(len(steps) * 3 // 4, 1)]  # without the disturbed ones
    parts = {part: sum(s.get(part, 0.0) for s in middle) / len(middle) * 1e3 for part in middle[0]}
    known = sum(value for part, value in parts.items() if part != "step")
    parts["the rest of the runner"] = parts["step"] - known
    return parts


def _timed_layer(clock: _Clock, layer: Any) -> Any:
    names = ("qkv", "output", "gate_up", "down")
    products = {name: clock.around(f"product: {name}", getattr(layer, name)) for name in names}
    return type(layer)(weights=layer.weights, **products)
