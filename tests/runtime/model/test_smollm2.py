"""The real model: SmolLM2-135M says what `transformers` says, token by token, in float32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from kvproof.runtime.model import zoo
from kvproof.runtime.model.export import export
from kvproof.runtime.model.load import LoadedModel, load_model
from kvproof.runtime.model.runner import TorchRunner
from kvproof.runtime.protocols import PREVIOUS_SAMPLE, StepBatch
from kvproof.runtime.sampling_params import SamplingParams

pytestmark = pytest.mark.long

OUTPUT = 32
BLOCK = 16
PROMPTS = (
    "The capital of France is",
    "Once upon a time, there was a little girl who",
    "def fibonacci(n):\n    ",
    "Water boils at",
    "The three primary colours are",
    "In 1969, the first human",
    "A recipe for pancakes: first,",
    "Photosynthesis is the process by which",
    "1 + 1 = 2, 2 + 2 = 4, 3 + 3 =",
    "Dear Sir or Madam,\n\nI am writing to",
    "La capitale de l'Italie est",
    "The quick brown fox",
    "What is the meaning of life? Philosophers have",
    "SELECT name FROM users WHERE",
    "The mitochondria is",
    "To be, or not to be, that is the",
    "Roses are red, violets are",
    "The largest planet in the solar system is",
    "My favourite book is",
    "Climate change is caused by",
)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("exported") / "model"
    export(zoo.fetch("smollm2-135m"), directory)
    return directory


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load_model(zoo.fetch("smollm2-135m"), dtype="float32")


@pytest.fixture(scope="module")
def expected(exported: Path, model: LoadedModel) -> list[list[int]]:
    """What `transformers` says to each prompt by itself."""
    torch.set_num_threads(2)
    reference = transformers.AutoModelForCausalLM.from_pretrained(exported).eval()
    outputs = []
    for prompt in PROMPTS:
        tokens = torch.from_numpy(model.tokenizer.encode(prompt)).long()[None]
        with torch.inference_mode():
            out = reference.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=OUTPUT,
                min_new_tokens=OUTPUT,
                do_sample=False,
                pad_token_id=2,
            )
        outputs.append(out[0, tokens.shape[1] :].tolist())
    return outputs


@pytest.fixture
def runner(model: LoadedModel) -> Iterator[TorchRunner]:
    torch.set_num_threads(2)
    made = TorchRunner(model, num_blocks=20 * 5, block_size=BLOCK)
    yield made
    made.close()


def test_token_ids_are_those_of_transformers(exported: Path, model: LoadedModel) -> None:
    reference = transformers.AutoTokenizer.from_pretrained(exported)
    texts = (*PROMPTS, "12345 ½ é\n\n\t日本 🎉  x", "<|im_start|>user\nhi<|im_end|>")
    for text in texts:
        assert model.tokenizer.encode(text).tolist() == reference.encode(text)


@pytest.mark.parametrize("chunk", [1000, 3])
def test_greedy_tokens_of_twenty_prompts_are_those_of_transformers(
    model: LoadedModel, runner: TorchRunner, expected: list[list[int]], chunk: int
) -> None:
    prompts = [model.tokenizer.encode(prompt) for prompt in PROMPTS]
    # min_tokens forbids the end token, as min_new_tokens does in the reference.
    params = SamplingParams(temperature=0, min_tokens=OUTPUT, max_tokens=OUTPUT)
    for row, prompt in enumerate(prompts):
        runner.bind(row, params, prompt)
    tables = np.arange(100, dtype=np.int32).reshape(20, 5)
    tables[::2] = tables[::2, ::-1]  # every other table needs a gather
    tables = tables.copy()
    done = np.zeros(20, np.int64)
    outputs: list[list[int]] = [[] for _ in prompts]
    step = 0
    while any(len(output) < OUTPUT for output in outputs):
        step += 1
        rows = [row for row in range(20) if len(outputs[row]) < OUTPUT]
        pieces = [
            prompts[row][done[row] : done[row] + chunk]
            if done[row] < len(prompts[row])
            else np.array([PREVIOUS_SAMPLE], np.int32)
            for row in rows
        ]
        counts = np.array([len(piece) for piece in pieces], np.int32)
        ends = done[rows] + counts
        samples = ends >= np.array([len(prompts[row]) for row in rows])
        runner.launch(
            StepBatch(
                step=step,
                rows=np.array(rows, np.int32),
                starts=done[rows].astype(np.int32),
                counts=counts,
                tokens=np.concatenate(pieces),
                tables=tables[rows],
                samples=samples,
            )
        )
        done[rows] = ends
        result = runner.collect(step, 120)
        assert not result.errors
        for at, row in enumerate(rows):
            if samples[at]:
                outputs[row].append(int(result.sampled[at]))
    assert outputs == expected
