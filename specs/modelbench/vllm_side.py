"""vLLM's side of the benchmark: a script that vLLM's own Python runs, with kvproof nowhere.

python vllm_side.py MODEL_DIRECTORY DTYPE
"""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from typing import Any


def _workload() -> Any:
    """The module beside this file, by its path: it is the same work for both."""
    path = Path(__file__).with_name("workload.py")
    spec = importlib.util.spec_from_file_location("bench_workload", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Load the model named by the arguments, then answer loads."""
    model, dtype, mode = sys.argv[1:]
    workload = _workload()
    import vllm

    llm = vllm.LLM(
        model=model,
        dtype=dtype,
        max_model_len=2048,
        max_num_seqs=64,
        max_num_batched_tokens=8192,
        disable_log_stats=True,
        enforce_eager=mode == "eager",
    )
    vocabulary = llm.get_tokenizer().vocab_size

    def run(load: Any) -> float:
        params = vllm.SamplingParams(
            temperature=0, max_tokens=load.output, ignore_eos=True, detokenize=True
        )
        prompts = [{"prompt_token_ids": prompt} for prompt in load.prompts(vocabulary)]
        started = time.perf_counter()
        done = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - started
        assert all(len(one.outputs[0].token_ids) == load.output for one in done)
        return seconds

    workload.serve(run, {"engine": "vllm", "version": vllm.__version__})


if __name__ == "__main__":
    main()
