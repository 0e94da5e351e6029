"""Under `python -O` no assertion is evaluated: what the engine does must not stand in one."""

from __future__ import annotations

import subprocess
import sys

A_LOAD = """
import numpy as np
from kvproof.runtime.api import EngineConfig
from kvproof.runtime.lifecycle import Lifecycle

assert False, "assertions are on"
lifecycle = Lifecycle(EngineConfig(num_blocks=8, block_size=4, max_model_len=32))
row = lifecycle.add("a", np.arange(9, dtype=np.int32))
outcome, number = lifecycle.admit_loading(row, (), lifecycle.keys(row, 2)[:2], 1)
print(outcome.went, number, [len(load.blocks) for load in lifecycle.open_transfers()])
"""


def test_a_load_begins_without_assertions_too() -> None:
    found = subprocess.run(
        [sys.executable, "-O", "-c", A_LOAD], capture_output=True, text=True, check=True
    )
    assert found.stdout == "True 1 [2]\n"
