"""`kvproof fuzz`: exit codes, JSON, JUnit, and what it says of a wrong call."""

import json
import os
from pathlib import Path
from xml.etree import ElementTree

import pytest
from kvproof.specs import cli

from . import documented
from .test_documented_target import FREES_TWICE


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    documented.load(tmp_path, "my_sound")
    documented.load(tmp_path, "my_broken", FREES_TWICE)


def test_a_sound_engine_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["fuzz", "--target", "my_sound:MyTarget", "--operations", "500", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert code == 0
    assert report["findings"] == []
    assert report["operations"] >= 500
    assert report["operations_by_name"]["step"] > 0
    assert not os.path.exists("kvproof-findings")


def test_a_broken_engine_exits_with_1_and_writes_tests_and_junit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = cli.main(
        [
            "fuzz",
            "--target",
            "my_broken:MyTarget",
            "--operations",
            "800",
            "--json",
            "--junit",
            "findings.xml",
            "--out",
            "found",
            "--seed",
            "2",
        ]
    )
    report = json.loads(capsys.readouterr().out)
    assert code == 1
    finding = report["findings"][0]
    assert finding["rule"] in ("free-or-held", "counts-are-holders")
    assert finding["legal"]
    assert Path(finding["test"]).read_text().count("def test_") == 1
    suite = ElementTree.parse("findings.xml").getroot()
    assert suite.get("failures") == str(len(report["findings"]))
    assert [case.get("name") for case in suite] == [f["name"] for f in report["findings"]]


def test_the_table_names_the_finding_and_the_folder(capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["fuzz", "--target", "my_broken:MyTarget", "--operations", "800"])
    out = capsys.readouterr().out
    assert code == 1
    assert "free or held" in " ".join(out.split()) or "reference count" in " ".join(out.split())
    assert "pytests in kvproof-findings" in " ".join(out.split())
    assert "operations in" in out
    assert "the same again: kvproof fuzz --target my_broken:MyTarget --seed 0 --operations" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--target", "nonsense"], "nonsense is no target"),
        (["--target", "my_sound:Nothing"], "my_sound has no Target named Nothing"),
        (["--target", "no_such_module:X"], "there is no module no_such_module"),
        (["--target", "my_sound:MyTarget", "--connector", "x"], "has no connector x"),
    ],
)
def test_a_wrong_call_exits_with_4_and_says_what_is_wrong(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["fuzz", *arguments]) == 4
    assert says in " ".join(capsys.readouterr().err.split())


def test_the_rules_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fuzz", "--rules"]) == 0
    assert "counts-are-holders" in capsys.readouterr().out
