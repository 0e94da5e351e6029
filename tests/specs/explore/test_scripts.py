"""A counterexample as text, as a picture and as a test that runs."""

from pathlib import Path

import pytest
from kvproof.specs.check.declaration import Change, standard
from kvproof.specs.explore import (
    Report,
    Script,
    as_mermaid,
    as_pytest,
    as_text,
    explore,
    replay_on_declaration,
)
from kvproof.specs.explore.script import CannotReplayError

from .systems import TINY, F, changed, core
from .test_faults import EVERYDAY, ONE


@pytest.fixture(scope="module")
def script() -> Script:
    change, instance, *_ = EVERYDAY["blocks are released under a launched step"]
    report: Report = explore(instance, changed(change))
    return report.scripts[0]


def test_the_text_says_who_did_what_and_which_states_changed(script: Script) -> None:
    lines = as_text(script).splitlines()
    assert lines[0] == "S2 what a launched step touches is held (r0, b0)"
    assert any("client" in line and "add(r0)" in line for line in lines)
    assert any("r0 WAITING → RUNNING" in line for line in lines)
    assert sum(line.lstrip()[:1].isdigit() for line in lines[3:]) == len(script.steps)


def test_the_picture_is_a_mermaid_sequence_diagram(script: Script) -> None:
    lines = as_mermaid(script).splitlines()
    assert lines[0] == "sequenceDiagram"
    assert "    client->>r0: add(r0)" in lines
    assert lines[-1].startswith("    Note over engine: S2")


def test_the_test_fails_with_the_fault_and_passes_without(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "test_counterexample.py"
    path.write_text(as_pytest(script))
    scope: dict[str, object] = {"__name__": "generated"}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    (name,) = [each for each in scope if each.startswith("test_")]
    scope[name]()  # type: ignore[operator]
    faulty = changed(EVERYDAY["blocks are released under a launched step"][0])
    scope["replay_on_declaration"] = lambda instance, labels: replay_on_declaration(
        instance, labels, faulty
    )
    with pytest.raises(AssertionError):
        scope[name]()  # type: ignore[operator]


def test_a_lasso_is_shown_with_its_loop() -> None:
    from kvproof.specs.explore import Instance

    lost = Instance(
        requests=1, features=core(F.WAITING_RESETS, F.LOST, without=[F.ABORTS, F.RESETS])
    )
    lasso = explore(lost).scripts[0]
    assert "and from here on, for ever:" in as_text(lasso)
    assert "    loop for ever" in as_mermaid(lasso)


def test_a_script_that_cannot_happen_is_refused() -> None:
    with pytest.raises(CannotReplayError, match="step 1: launch"):
        replay_on_declaration(TINY, ["launch(r0)"], standard())
    with pytest.raises(CannotReplayError, match="no action fly"):
        replay_on_declaration(TINY, ["add(r0)", "fly(r0)"], standard())


def test_a_fact_that_leaves_its_range_is_a_finding() -> None:
    twice = changed(
        Change("request_effects.py", "    r.delivered = advance(r.delivered, x.tokens)",
               "    r.delivered = advance(r.delivered, x.tokens + 3)")
    )  # fmt: skip
    script = explore(ONE, twice).scripts[0]
    assert (script.name, script.subject) == ("a fact leaves its range", "r0.delivered")
