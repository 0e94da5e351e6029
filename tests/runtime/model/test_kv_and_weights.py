"""KV blocks travel whole; released memory is really given back and comes again as it was."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from kvproof.runtime.model.config import ModelConfig
from kvproof.runtime.model.errors import ModelFileError
from kvproof.runtime.model.kv import TorchKV
from kvproof.runtime.model.load import load_model, open_checkpoint
from kvproof.runtime.model.memory import HostArena
from kvproof.runtime.model.runner import TorchRunner
from kvproof.runtime.model.weights import Weights
from safetensors.torch import load_file, save_file

from . import tiny
from .paged import CPU, Paged

Directories = dict[str, Path]


def resident_bytes() -> int:
    """Private memory of this process: what a release has to lower."""
    pages = Path("/proc/self/statm").read_text().split()
    return (int(pages[1]) - int(pages[2])) * resource.getpagesize()


@pytest.fixture
def config(directories: Directories) -> ModelConfig:
    return open_checkpoint(directories["llama"]).config


def filled(config: ModelConfig, blocks: int) -> TorchKV:
    kv = TorchKV(config, blocks, 4, torch.float32, CPU)
    kv.blocks.copy_(torch.arange(kv.blocks.numel()).view(kv.blocks.shape))
    return kv


def test_blocks_come_back_as_they_were_in_any_order_and_place(config: ModelConfig) -> None:
    kv = filled(config, 10)
    before = kv.blocks.clone()
    buffer = kv.new_buffer(3)
    assert buffer.nbytes == 3 * kv.bytes_per_block
    kv.read(np.array([7, 2, 5], np.int32), buffer)
    assert torch.equal(buffer[0], before[:, :, 7])
    kv.write(np.array([0, 9], np.int32), buffer[1:])
    assert torch.equal(kv.blocks[:, :, 0], before[:, :, 2])
    assert torch.equal(kv.blocks[:, :, 9], before[:, :, 5])
    untouched = [1, 2, 3, 4, 5, 6, 7, 8]
    assert torch.equal(kv.blocks[:, :, untouched], before[:, :, untouched])


def test_the_blocks_of_a_run_are_adjacent_in_each_layer(config: ModelConfig) -> None:
    kv = filled(config, 6)
    assert kv.slots[1, 0, 8:16].data_ptr() == kv.blocks[1, 0, 2].data_ptr()
    assert kv.blocks.is_contiguous()


def test_released_blocks_give_their_memory_back(config: ModelConfig) -> None:
    kv = filled(config, 40_000)  # about 60 MB
    size = kv.num_blocks * kv.bytes_per_block
    before = resident_bytes()
    kv.release()
    assert not kv.resident
    assert before - resident_bytes() > 0.8 * size
    kv.restore()
    assert kv.resident
    kv.blocks.fill_(3.0)
    assert kv.blocks.sum() == 3.0 * kv.blocks.numel()


def test_an_arena_that_cannot_be_had_is_a_memory_error() -> None:
    with pytest.raises(MemoryError):
        HostArena(1 << 60)


def large(directory: Path) -> Path:
    """A model whose weights are worth measuring (about 50 MB)."""
    model = tiny.make_model("llama", vocab_size=260_000)
    return tiny.save(model, directory)


@pytest.mark.parametrize("level", [1, 2])
def test_a_runner_asleep_holds_no_packed_copies_either(tmp_path: Path, level: int) -> None:
    runner = TorchRunner(load_model(large(tmp_path / "model")), num_blocks=1, block_size=4)
    weights = runner._weights
    for _ in range(2):  # the second time the allocator has learnt to keep what is freed
        before = resident_bytes()
        runner.release_weights(level)
        assert before - resident_bytes() > 1.8 * weights.nbytes
        runner.restore_weights()
    runner.close()


@pytest.mark.parametrize("level", [1, 2])
def test_released_weights_give_their_memory_back_and_return(tmp_path: Path, level: int) -> None:
    path = large(tmp_path / "model")
    weights = Weights(lambda: open_checkpoint(path), torch.float32, CPU)
    copy = {name: view.clone() for name, view in weights._views.items() if "layer" in name}
    before = resident_bytes()
    weights.release(level)
    assert not weights.resident
    assert before - resident_bytes() > 0.8 * weights.nbytes
    if level == 1:
        shutil.rmtree(path)  # the copy is at hand: the files are not needed
    weights.restore()
    assert weights.resident
    assert all(torch.equal(weights._views[name], value) for name, value in copy.items())


def test_logits_after_a_sleep_are_those_before(directories: Directories) -> None:
    paged = Paged(directories["qwen3"])
    paged.tables = {"a": [0, 1, 2], "b": [3, 4, 5]}
    prompt = tiny.tokens(10)
    (before,) = paged.step(("a", prompt))
    for level in (1, 2, 1):
        paged.weights.release(level)
        paged.kv.release()
        paged.weights.restore()
        paged.kv.restore()
    (after,) = paged.step(("b", prompt))
    assert torch.equal(before, after)


@pytest.fixture
def directory(directories: Directories, tmp_path: Path) -> Path:
    return Path(shutil.copytree(directories["llama"], tmp_path / "model"))


def test_a_failed_return_leaves_the_weights_released_and_can_be_tried_again(
    directory: Path,
) -> None:
    weights = Weights(lambda: open_checkpoint(directory), torch.float32, CPU)
    weights.release(2)
    directory.rename(directory.with_name("away"))
    with pytest.raises(ModelFileError):
        weights.restore()
    assert not weights.resident
    directory.with_name("away").rename(directory)
    weights.restore()
    assert weights.resident


def test_weights_that_changed_on_disk_do_not_return_unnoticed(directory: Path) -> None:
    weights = Weights(lambda: open_checkpoint(directory), torch.float32, CPU)
    weights.release(2)
    tensors = load_file(directory / "model.safetensors")
    tensors["model.layers.0.mlp.down_proj.weight"][0, 0] += 1
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(ModelFileError, match="changed"):
        weights.restore()
    assert not weights.resident


def test_the_digest_tells_models_and_types_apart(
    directories: Directories, references: dict[str, transformers.PreTrainedModel]
) -> None:
    digests = {
        Weights(lambda case=case: open_checkpoint(directories[case]), dtype, CPU).digest
        for case in directories
        for dtype in (torch.float32, torch.bfloat16)
    }
    assert len(digests) == 2 * len(references)
    again = Weights(lambda: open_checkpoint(directories["llama"]), torch.float32, CPU)
    assert again.digest in digests


def test_a_level_that_does_not_exist_is_refused(directory: Path) -> None:
    weights = Weights(lambda: open_checkpoint(directory), torch.float32, CPU)
    with pytest.raises(ValueError, match="level 3"):
        weights.release(3)
    assert weights.resident
