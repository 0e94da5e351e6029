"""`kvproof fuzz`: exit codes, JSON, JUnit, and what it says of a wrong call."""

import json
import os
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from kvproof.specs import cli
from kvproof.specs.cli.paths import writable, writable_folder

from . import documented
from .test_documented_target import ABORT_RAISES, FREES_TWICE


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
    code = cli.main(["fuzz", "--target", "my_broken:MyTarget", "--operations", "300"])
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
        (["--out", "/proc/x"], "/proc/x cannot be written"),
        (["--junit", "/proc/x.xml"], "/proc/x.xml cannot be written"),
        (["--out", "my_sound.py/found"], "my_sound.py is a file; name a folder"),
    ],
)
def test_a_wrong_call_exits_with_4_and_says_what_is_wrong(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["fuzz", *arguments]) == 4
    assert says in " ".join(capsys.readouterr().err.split())


MISTAKES = {
    "unknown_state": (
        ('victim.state = "PREEMPTED"', 'victim.state = "SWAPPED"'),
        r"MyTarget.snapshot\(\) after \S+\(.*\) shows request r\d+ in the state 'SWAPPED', "
        r".* UNKNOWN, WAITING, .* PREEMPTED,",
    ),
    "no_snapshot": (("def snapshot(self)", "def snapshots(self)"), "MyTarget lacks the method sn"),
    "snapshot_of_nothing": (
        ("        return Snapshot(\n", "        Snapshot(\n"),
        r"MyTarget.snapshot\(\) of a fresh engine returned None; it returns a Snapshot",
    ),
    "snapshot_raises": (
        ("engine, seen = self.engine, ", "engine, seen = self.motor, "),
        r"a fresh engine raised AttributeError: .*'motor' \(snapshot_raises.py:\d+ in snapshot\)",
    ),
    "no_engine": (
        ("Engine(settings.blocks,", "Engine("),
        r"MyTarget\(Settings\(.* raised TypeError",
    ),
    "mute_step": (("        return bool(batch)\n", ""), r"MyTarget.step\(\) returned None"),
    "feature_without_method": (
        (
            "    def abort(self, request):",
            "    features = {'pause'}\n\n    def abort(self, request):",
        ),
        "MyTarget has no method pause",
    ),
    "wrong_type": (
        ("steps_in_flight=int(", "misreads_=1, steps_in_flight=int("),
        "of a fresh engine raised TypeError",
    ),
    "no_blocks": (
        ('Hold(s.name, "REQUEST", tuple(s.table))', 'Hold(s.name, "REQUEST", None)'),
        r"MyTarget.snapshot\(\) after step\(\) cannot be compared with the rules: TypeError",
    ),
    "no_module": (
        ("from collections import deque", "import nowhere_to_be_found"),
        "needs nowhere_to",
    ),
    "no_name": (
        ("from collections import deque", "deque = duque"),
        "cannot be imported: NameError",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_of_the_target_is_no_finding_and_exits_with_4(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (old, new), says = MISTAKES[name]
    text = documented.source()
    assert old in text
    (tmp_path / f"{name}.py").write_text(text.replace(old, new))
    code = cli.main(["fuzz", "--target", f"{name}:MyTarget", "--operations", "2000"])
    told = " ".join(capsys.readouterr().err.split())
    assert code == 4, told
    assert re.search(says, told), told
    assert not os.path.exists("kvproof-findings")


def test_an_exception_of_the_engine_stays_a_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_raising.py").write_text(documented.source().replace(*ABORT_RAISES))
    code = cli.main(["fuzz", "--target", "my_raising:MyTarget", "--operations", "600", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert code == 1
    assert "no-exception" in {finding["rule"] for finding in report["findings"]}


def test_trying_what_a_command_may_write_leaves_everything_as_it_was(tmp_path: Path) -> None:
    kept = tmp_path / "kept.xml"
    kept.write_text("kept")
    before = sorted(tmp_path.iterdir())
    assert writable_folder(Path("a/b/c")) == Path("a/b/c")
    assert writable_folder(tmp_path) == tmp_path
    assert writable(Path("new.xml")) == Path("new.xml")
    assert writable(kept) == kept
    assert sorted(tmp_path.iterdir()) == before
    assert kept.read_text() == "kept"


def test_the_rules_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fuzz", "--rules"]) == 0
    assert "counts-are-holders" in capsys.readouterr().out
