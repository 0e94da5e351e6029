"""The command line itself: lazy commands, missing extras, exit codes."""

import os
import shutil
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest
import typer
from kvproof.specs import cli
from kvproof.specs.cli import Listed, exits
from kvproof.specs.cli.lazy import EXTRAS, missing_extra

PACKAGE = cli.__name__
ROOT = Path(__file__).resolve().parents[2]


def install(monkeypatch: pytest.MonkeyPatch, command: object, extra: str | None = None) -> None:
    """Make `kvproof toy` the only command."""
    module = types.ModuleType(f"{PACKAGE}.toy")
    module.command = command  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(cli, "COMMANDS", (Listed("toy", "A toy.", extra),))


def needs_z3() -> None:
    raise ModuleNotFoundError("No module named 'z3'", name="z3")


def needs_a_typo() -> None:
    raise ModuleNotFoundError("No module named 'trsuite'", name="trsuite")


def refutes() -> None:
    raise typer.Exit(exits.REFUTED)


def greets(name: str, loud: bool = False) -> None:
    typer.echo(f"hello {name}{'!' if loud else ''}")


def test_the_help_lists_a_command_without_importing_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "COMMANDS", (Listed("absent", "Is nowhere.", None),))
    assert cli.main(["--help"]) == exits.OK
    assert "Is nowhere." in capsys.readouterr().out


def test_a_command_gets_its_arguments(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, greets)
    assert cli.main(["toy", "reader", "--loud"]) == exits.OK
    assert capsys.readouterr().out == "hello reader!\n"


def test_a_command_may_have_commands_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    family = typer.Typer(add_completion=False)
    family.command("greet")(greets)
    family.command("refute")(refutes)
    install(monkeypatch, family)
    assert cli.main(["toy", "greet", "reader"]) == exits.OK
    assert cli.main(["toy", "refute"]) == exits.REFUTED
    assert capsys.readouterr().out == "hello reader\n"


def test_the_exit_code_of_a_command_is_that_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, refutes)
    assert cli.main(["toy"]) == exits.REFUTED


def test_a_usage_error_does_not_read_as_refuted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, greets)
    for typed in (["toy"], ["toy", "reader", "--louder"], ["tyo"], ["--nonsense"]):
        assert cli.main(typed) == exits.USAGE
        assert "--help" in capsys.readouterr().err


def test_a_missing_extra_is_named_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, needs_z3, "specs")
    assert cli.main(["toy"]) == exits.USAGE
    told = capsys.readouterr().err
    assert "kvproof toy needs z3" in told
    assert "the extra specs of kvproof" in told
    assert "pip install 'path/to/kvproof[specs]'" in told


@pytest.mark.parametrize(("module", "extra"), [("websockets", "runtime"), ("z3", "specs")])
def test_the_demo_names_the_extra_that_it_lacks(module: str, extra: str) -> None:
    lacks = f"import sys; sys.modules[{module!r}] = None; from kvproof.specs.cli import main; "
    code = f"{lacks}sys.exit(main(['demo']))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == exits.USAGE, run.stderr
    assert f"kvproof demo needs {module}" in run.stderr
    assert f"path/to/kvproof[{extra}]" in run.stderr


def test_exploring_needs_its_own_extra_alone() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own = project["optional-dependencies"]["explore"]
    others = {module for module, extras in EXTRAS.items() if "explore" not in extras}
    # typer takes pydantic for its own where it is installed.
    lacks = f"import sys; sys.modules.update(dict.fromkeys({sorted(others - {'pydantic'})})); "
    code = f"{lacks}from kvproof.specs.cli import main; "
    code += "sys.exit(main(['explore', '--requests', '1', '--blocks', '2']))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == exits.OK, run.stderr
    assert len(own) == len(set(EXTRAS) - others)


def test_every_dependency_of_an_extra_leads_to_that_extra() -> None:
    """Distributions that are not named as their module are named here."""
    modules = {"z3-solver": "z3", "prometheus-client": "prometheus_client"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra in ("specs", "explore", "runtime", "vllm"):
        for dependency in project["optional-dependencies"][extra]:
            name = dependency.partition(">=")[0]
            assert extra in EXTRAS[modules.get(name, name)], dependency


def test_a_missing_module_that_no_extra_brings_is_not_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, needs_a_typo, "specs")
    with pytest.raises(ModuleNotFoundError, match="trsuite"):
        cli.main(["toy"])


def test_of_several_extras_that_bring_a_module_the_commands_own_is_named() -> None:
    error = ModuleNotFoundError(name="torch.nn")
    assert missing_extra(error, "runtime") == "runtime"
    assert missing_extra(error, "explore") == "explore"
    assert missing_extra(error, None) in EXTRAS["torch"]


def test_every_listed_command_has_its_module_and_prints_its_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for listed in cli.COMMANDS:
        assert cli.main([listed.name, "--help"]) == exits.OK, listed.name
        assert "Usage" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new", "said", "place"),
    [
        (
            "    Row(E.GRAMMAR_READY, (GRAMMAR,)",
            "    Row(E.GRAMMAR_READY, (RUNNING,)",
            "SpecificationError: request: GRAMMAR_READY in WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR "
            "has no row for every case",
            "",
        ),
        (
            "ROWS = (",
            "ROWS = no_such_rows, (",
            "NameError: name 'no_such_rows' is not defined",
            "/request.py:",
        ),
        (
            "ROWS = (",
            "ROWS = = (",
            "SyntaxError: invalid syntax (request.py, line ",
            "/request.py:",
        ),
    ],
    ids=["not total", "a name that is not there", "no Python"],
)
@pytest.mark.parametrize("asked", ["check --id P1", pytest.param("table", marks=pytest.mark.long)])
def test_a_declaration_that_does_not_load_is_a_bad_specification_and_no_traceback(
    tmp_path: Path, old: str, new: str, said: str, place: str, asked: str
) -> None:
    """A copy of the project is found before it: the same sources but for one line."""
    copy = tmp_path / "kvproof"
    shutil.copytree(ROOT / "statemachine", copy / "statemachine")
    (copy / "specs").symlink_to(ROOT / "specs")
    (copy / "runtime").symlink_to(ROOT / "runtime")
    file = copy / "statemachine" / "request.py"
    source = file.read_text()
    assert source.count(old) == 1
    file.write_text(source.replace(old, new))
    code = "import sys; from kvproof.specs.cli import main; sys.exit(main())"
    run = subprocess.run(
        [sys.executable, "-c", code, *asked.split()],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == exits.USAGE, run.stderr
    assert f"the declaration does not load: {said}" in run.stderr
    assert "Traceback" not in run.stderr
    assert place in "".join(run.stderr.splitlines()[1:])
    assert place or len(run.stderr.splitlines()) == 1, "the words name the cell"
    assert run.stdout == ""
