"""vLLM's side of `kvproof bench scheduler`: each scenario, small."""

from __future__ import annotations

import pytest
from kvproof.specs.bench.scenarios import Scenario

from ..specs.bench.small import SMALL

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize("scenario", SMALL, ids=lambda scenario: scenario.title)
def test_their_side_takes_the_samples_that_it_is_asked_for(scenario: Scenario) -> None:
    from kvproof.specs.bench import theirs

    seconds = theirs.measure(scenario)
    assert len(seconds) == scenario.samples
    assert all(each > 0 for each in seconds)
