"""What the documents show is run or looked up: a snippet that does not work fails here."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from kvproof.specs import cli
from kvproof.specs.check.obligations import BY_ID

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [document.relative_to(ROOT).as_posix() for document in DOCUMENTS]


def blocks(document: Path, language: str) -> list[str]:
    """List the fenced blocks of a language, without those under a `<!-- not run: why -->` line."""
    pattern = rf"^(<!-- not run: .+ -->\n)?```{language}\n(.*?)^```"
    found = re.findall(pattern, document.read_text(), re.MULTILINE | re.DOTALL)
    return [block for left_out, block in found if not left_out]


def commands(document: Path) -> list[list[str]]:
    """Split the `$ …` lines of the console blocks into words, comments left out."""
    lines = "".join(blocks(document, "console")).splitlines()
    shown = [line.removeprefix("$ ").partition(" #")[0] for line in lines if line.startswith("$ ")]
    return [line.split() for line in shown]


def options(command: object) -> set[str]:
    """Name every option of a typer command and of the commands below it."""
    own = {name for parameter in command.params for name in parameter.opts}  # type: ignore[attr-defined]
    below = getattr(command, "commands", {}).values()
    return own.union(*(options(each) for each in below))


@pytest.mark.parametrize("document", DOCUMENTS, ids=NAMES)
def test_the_python_of_a_document_runs(document: Path, tmp_path: Path) -> None:
    snippets = blocks(document, "python")
    ast.parse("\n".join(snippets))
    if snippets:
        run = subprocess.run(
            [sys.executable, "-c", "\n".join(snippets)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("document", DOCUMENTS, ids=NAMES)
def test_a_command_that_a_document_shows_exists_with_its_options(document: Path) -> None:
    group = cli.application()
    for program, *words in commands(document):
        if program == "kvproof" and words:
            name = words[0]
            assert name in group.commands, f"kvproof {name}"
            known = options(group.commands[name].load()) | {"--help"}
            shown = {word.partition("=")[0] for word in words if word.startswith("--")}
            assert shown <= known, f"kvproof {name} has no {shown - known}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=NAMES)
def test_a_link_inside_the_project_leads_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text())
    local = [link for link in links if not re.match(r"[a-z]+:", link)]
    assert [link for link in local if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=NAMES)
def test_a_file_of_the_project_that_a_document_names_exists(document: Path) -> None:
    named = re.findall(
        r"`((?:statemachine|runtime|specs|tests|docs)/[\w./-]*)`", document.read_text()
    )
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_obligations_that_the_readme_shows_are_those_that_are_proved() -> None:
    line = r"^([SP]\d+) +(.+?) +(\w+)((?: +\d+){3}) +\d+\.\d proved$"
    shown = re.findall(line, DOCUMENTS[0].read_text(), re.MULTILINE)
    assert shown
    assert [each[:3] for each in shown] == [
        (name, BY_ID[name].short, BY_ID[name].method) for name, *_ in shown
    ]


def test_a_snippet_that_is_marked_as_not_run_is_left_out(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text(
        "```python\nx = 1\n```\n\n<!-- not run: needs a GPU -->\n```python\nboom\n```\n"
        "```console\n$ kvproof check --id S2  # one obligation\nproved\n```\n"
    )
    assert blocks(document, "python") == ["x = 1\n"]
    assert commands(document) == [["kvproof", "check", "--id", "S2"]]


def test_the_options_of_a_family_of_commands_are_found() -> None:
    family = typer.Typer(add_completion=False)
    family.command("fetch")(lambda: None)

    @family.command("export")
    def export(force: bool = False) -> None:
        typer.echo(str(force))

    assert "--force" in options(typer.main.get_command(family))
