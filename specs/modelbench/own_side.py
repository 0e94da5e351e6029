"""kvproof's side of the benchmark, in a process of its own: `main(model, dtype, threads)`."""

from __future__ import annotations

import sys
import time


def main() -> None:
    """Load the model named by the arguments, then answer loads."""
    model, dtype, threads, steps = sys.argv[1:]
    import torch

    from ...runtime.engine import Engine
    from ...runtime.sampling_params import SamplingParams
    from .workload import Load, serve

    torch.set_num_threads(int(threads))
    engine = Engine.from_pretrained(
        model,
        dtype=dtype,
        device="cpu",
        device_blocks=1024,
        max_num_seqs=64,
        max_batched_tokens=8192,
        steps_in_flight=int(steps),
    )

    def run(load: Load) -> float:
        params = SamplingParams(temperature=0, max_tokens=load.output, ignore_eos=True)
        prompts = load.prompts(engine.model.config.vocab_size)
        started = time.perf_counter()
        done = engine.generate(prompts, params, progress=False)
        seconds = time.perf_counter() - started
        assert all(len(one.tokens) == load.output for one in done)
        return seconds

    try:
        serve(run, {"engine": "kvproof", "weight_bytes": engine.model.weights.nbytes})
    finally:
        engine.shutdown(drain=False)
