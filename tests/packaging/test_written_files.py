"""What a command cannot write or would not heed is said before it works, not after."""

from pathlib import Path

import pytest
from kvproof.specs.cli import exits, main


@pytest.mark.parametrize(
    "command",
    [
        ["table", "--page"],
        ["diagram", "--out"],
        ["check", "--junit"],
        ["check", "--sarif"],
        ["check", "--html"],
        ["fuzz", "--target", "runtime", "--junit"],
        ["conform", __file__, "--junit"],
        ["serve", "--trace"],
        ["export", "--promela"],
    ],
)
def test_a_file_that_cannot_be_written_is_a_usage_error(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, words in ((tmp_path / "none" / "x", "no folder"), (tmp_path, "is a folder")):
        assert main([*command, str(path)]) == exits.USAGE
        assert words in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(
    "command",
    [
        ["fuzz", "--target", "runtime", "--out"],
        ["explore", "--requests", "1", "--out"],
        ["check", "--id", "S4", "--smt2"],
    ],
)
def test_a_folder_that_cannot_be_made_is_a_usage_error(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    assert main([*command, str(file / "x")]) == exits.USAGE
    assert "is a file; name a folder" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["check", "--sample", "3"], "--mutants"),
        (["check", "--jobs", "2"], "--mutants"),
        (["check", "--json", "--explain", "S2"], "--json"),
        (["fuzz", "--target", ":"], "module:Class"),
        (["fuzz", "--target", "json:"], "module:Class"),
    ],
)
def test_an_option_that_would_do_nothing_is_a_usage_error(
    command: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == exits.USAGE
    assert words in capsys.readouterr().err
