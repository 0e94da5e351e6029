"""A file that cannot be written is said before a command works, not after."""

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
    ],
)
def test_a_file_that_cannot_be_written_is_a_usage_error(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, words in ((tmp_path / "none" / "x", "no folder"), (tmp_path, "is a folder")):
        assert main([*command, str(path)]) == exits.USAGE
        assert words in capsys.readouterr().err.replace("\n", " ")
