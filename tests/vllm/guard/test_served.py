"""The whole: a forced reset under a load, over HTTP, without the guard and with it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from .served import Served, exported_model, serve, until

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]

PROMPT = [1 + (7 * i) % 4000 for i in range(100)]
TOKENS = 8


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported_model(tmp_path_factory.mktemp("exported"))


def under_a_load(served: Served) -> tuple[list[int], tuple[int, Any], list[int], tuple[int, Any]]:
    """The undisturbed tokens, the first answer, the disturbed tokens, the answer afterwards."""
    expected = served.generate(PROMPT, TOKENS)
    # The prompt is in the tier; drop it from the device, so that it has to be loaded back.
    assert until(lambda: served.reset()[1] == {"success": True})
    served.hold.touch()
    disturbed: list[list[int]] = []
    client = threading.Thread(target=lambda: disturbed.append(served.generate(PROMPT, TOKENS)))
    client.start()
    assert until(served.loading.exists)
    first = served.reset(reset_running_requests=True)
    served.hold.unlink()
    if first[0] == 200:
        later: list[tuple[int, Any]] = []

        def done() -> bool:
            later.append(served.reset(reset_running_requests=True))
            return later[-1][1] == {"success": True}

        assert until(done)
        assert all(status == 200 for status, _ in later)
    client.join(240)
    assert disturbed
    return expected, first, disturbed[0], served.reset(reset_running_requests=True)


def test_with_the_guard_a_refusal_is_an_answer(model: Path, tmp_path: Path) -> None:
    with serve(model, tmp_path, guarded=True) as served:
        tokens, first, disturbed, last = under_a_load(served)
        assert first == (200, {"success": False})
        assert last == (200, {"success": True})
        assert len(tokens) == TOKENS
        assert tokens == disturbed
        counted = [
            line for line in served.metric("kvproof_guard_events_total") if "refused" in line
        ]
        assert counted
        assert 'kind="repair"' in counted[0]
        assert 'what="a reset refused, nothing changed"' in counted[0]
        assert float(counted[0].split()[-1]) >= 1
    log = (tmp_path / "server.log").read_text()
    assert "kvproof guard: repair" in log
    assert "repaired: a reset refused, nothing changed" in log


@pytest.mark.long
def test_without_the_guard_it_is_a_500_and_the_tokens_are_the_same(
    model: Path, tmp_path: Path
) -> None:
    with serve(model, tmp_path / "plain", guarded=False) as served:
        plain, first, disturbed, _ = under_a_load(served)
    assert first[0] == 500
    assert disturbed == plain
    with serve(model, tmp_path / "guarded", guarded=True) as served:
        assert served.generate(PROMPT, TOKENS) == plain
