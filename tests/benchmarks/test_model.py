"""The model's benchmark runs, and what it prints can be believed.

`kvproof bench model --vllm .venv-vllm/bin/python --profile` is the benchmark itself; here it runs
on a tiny model, so that the command and its figures stay sound.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from kvproof.specs import cli
from kvproof.specs.cli import exits
from kvproof.specs.modelbench.compare import Figure
from kvproof.specs.modelbench.workload import Load

from ..runtime.model import tiny


def test_no_two_rounds_share_a_prompt() -> None:
    loads = [Load(2, 16, 4, seed=seed) for seed in (8001, 8002)]
    prompts = [tuple(prompt) for load in loads for prompt in load.prompts(49152)]
    assert len(set(prompts)) == 4
    assert loads[0].prompts(49152) == Load(2, 16, 4, seed=8001).prompts(49152)


def test_a_ratio_compares_neighbours_not_averages() -> None:
    # The machine got four times as slow half-way: both engines felt it.
    figure = Figure("float32", 8, {"kvproof": [100.0, 25.0, 24.0], "vllm": [50.0, 12.5, 12.0]})
    figure.processor_rates = figure.rates
    assert figure.as_dict()["ratio_to_vllm"] == {"low": 2.0, "median": 2.0, "high": 2.0}


@pytest.mark.long
def test_the_benchmark_of_a_tiny_model_has_all_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tiny.save(tiny.make_model("llama"), tmp_path / "tiny")
    options = ["--streams", "1,2", "--dtypes", "float32", "--prompt", "8", "--output", "4"]
    options += ["--rounds", "2", "--threads", "1", "--profile", "--json"]
    threads = torch.get_num_threads()
    try:
        assert cli.main(["bench", "model", str(directory), *options]) == exits.OK
    finally:
        torch.set_num_threads(threads)
    found = json.loads(capsys.readouterr().out)
    assert [case["streams"] for case in found["cases"]] == [1, 2]
    assert all(len(case["tokens_per_second"]["kvproof"]) == 2 for case in found["cases"])
    assert all(case["floor"] > 0 for case in found["cases"])
    parts = found["profiles"][0]["milliseconds"]
    assert {"product: gate_up", "attention", "sampling", "step"} <= parts.keys()
    assert sum(value for part, value in parts.items() if part != "step") == pytest.approx(
        parts["step"]
    )
