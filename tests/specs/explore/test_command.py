import json
from pathlib import Path

import pytest
from kvproof.specs import cli
from kvproof.specs.cli import exits

SMALL = ["--requests", "1", "--transfers", "0"]


def test_a_complete_search_without_a_finding_exits_with_0(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["explore", *SMALL, "--json"]) == exits.OK
    result = json.loads(capsys.readouterr().out)
    assert result["complete"]
    assert result["counterexamples"] == []
    assert sum(result["levels"]) == result["states"]


def test_a_search_that_was_cut_short_is_undecided(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explore", *SMALL, "--depth", "3"]) == exits.UNDECIDED
    assert "stopped at a limit" in capsys.readouterr().out


def test_a_lasso_exits_with_2_and_is_written_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--requests", "1", "--with", "waiting-resets", "--with", "lost"]
    assert cli.main(["explore", *asked, "--out", str(tmp_path)]) == exits.REFUTED
    assert "P2 a waiting forced reset is done" in capsys.readouterr().out
    assert (tmp_path / "counterexample_1.mmd").read_text().startswith("sequenceDiagram")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--with", "flying"], "known are loads, stores"),
        (["--with", "lost", "--without", "lost"], "lost is both asked for and left out"),
        (["--requests", "9"], "requests is 9"),
        (["--drop", "luck"], "no assumption is named 'luck'"),
        (["--device", "abacus"], "no device 'abacus'"),
        (["--symmetry", "--drop", "the loop runs"], "no promise is asked for"),
    ],
)
def test_wrong_usage_exits_with_4_and_says_what_would_be_right(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explore", *arguments]) == exits.USAGE
    assert words in " ".join(capsys.readouterr().err.split())


def test_agreement_is_counted_and_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvproof.specs.explore.spin.spin_available", lambda: False)
    assert cli.main(["explore", *SMALL, "--agree"]) == exits.OK
    assert "agrees: plain Python" in capsys.readouterr().out


def test_an_instance_is_exported_as_promela(tmp_path: Path) -> None:
    model = tmp_path / "model.pml"
    assert cli.main(["export", "--promela", str(model), *SMALL]) == exits.OK
    text = model.read_text()
    assert "active proctype lifecycle()" in text
    assert "/* launch(r0) */" in text
