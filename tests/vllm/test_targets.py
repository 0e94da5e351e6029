"""The vLLM targets themselves: what is no fault of vLLM is not reported."""

import pytest
from kvproof.specs.fuzz.campaign import LENGTH
from kvproof.specs.fuzz.generation import Generator, Plan, RandomDraw, plan
from kvproof.specs.fuzz.run import explore
from kvproof.specs.fuzz.target import Feature, Target
from kvproof.specs.fuzz.targets import load

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]

#: Where faults of vLLM are known: without these it serves, preempts, loads and stores correctly.
LEFT_OUT = frozenset(
    {Feature.SESSIONS, Feature.RESET, Feature.SLEEP, Feature.LATE_SIGNALS, Feature.FAILURES}
)


def without_known_faults(seed: int, target: type[Target]) -> tuple[Plan, RandomDraw]:
    draw = RandomDraw(seed)
    chosen = plan(draw, target, faults=False)
    weights = {
        name: 0 if name in ("chunk", "close_input", "reset", "sleep", "wake", "fail") else weight
        for name, weight in chosen.weights.items()
    }
    features = chosen.features - LEFT_OUT
    return Plan(chosen.settings, features, weights, chosen.requests, stretch=False), draw


@pytest.mark.parametrize("name", ["vllm", "vllm-async"])
def test_no_rule_is_broken_where_vllm_has_no_fault(name: str) -> None:
    target = load(name)
    performed = 0
    for seed in range(80):
        chosen, draw = without_known_faults(seed, target)
        done, failure = explore(target, Generator(chosen, draw), LENGTH)
        assert failure is None, (failure.violation, [str(o) for o in failure.operations])
        performed += len(done)
    assert performed > 2_500
