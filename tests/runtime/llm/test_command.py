"""`kvproof generate`: what it prints, and how it ends."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kvproof.runtime import pretrained
from kvproof.runtime.model.load import LoadedModel
from kvproof.specs import cli
from kvproof.specs.cli import exits

QUESTION = "What is the capital of France?"
MAIN = "import sys; from kvproof.specs.cli import main; sys.exit(main())"
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def loaded(smollm2: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command finds the real model loaded already."""
    torch.set_num_threads(1)
    monkeypatch.setattr(pretrained, "load_model", lambda *_: smollm2)


@pytest.mark.usefixtures("loaded")
def test_the_capital_of_france_is_paris(capsys: Capture) -> None:
    assert cli.main(["generate", "smollm2-135m", QUESTION, "--chat"]) == exits.OK
    assert capsys.readouterr().out == "The capital of France is Paris.\n"


@pytest.mark.usefixtures("loaded")
def test_json_is_one_object_with_all_that_is_known(capsys: Capture) -> None:
    arguments = ["--json", "--max-tokens", "4", "--stop", " the", "--system", "Be brief."]
    assert cli.main(["generate", "smollm2-135m", QUESTION, "--chat", *arguments]) == exits.OK
    answer = json.loads(capsys.readouterr().out)
    assert answer["finish_reason"] in ("length", "stop")
    assert 1 <= len(answer["tokens"]) <= 4
    assert answer["prompt_tokens"] > 20
    assert answer["error"] is None


def test_the_text_of_a_tiny_model_comes_from_stdin(
    tiny_directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello"))
    options = ["--max-tokens", "3", "--ignore-eos", "--json", "--max-model-len", "64"]
    assert cli.main(["generate", str(tiny_directory), "-", *options]) == exits.OK
    answer = json.loads(capsys.readouterr().out)
    assert (answer["prompt_tokens"], len(answer["tokens"])) == (2, 3)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["/no/such/model", "hello"], "no such file"),
        (["{tiny}", ""], "the prompt is empty"),
        (["{tiny}", "hello", "--dtype", "int4"], "dtype 'int4'"),
        (["{tiny}", "hello", "--device", "abacus"], "device 'abacus'"),
        (["{tiny}", "hello", "--system", "Be brief."], "needs --chat"),
        (["{tiny}", "hello", "--top-p", "0"], "top_p"),
        (["{tiny}", "x" * 300, "--max-model-len", "64"], "300 tokens"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    tiny_directory: Path, capsys: Capture, arguments: list[str], named: str
) -> None:
    filled = [argument.replace("{tiny}", str(tiny_directory)) for argument in arguments]
    assert cli.main(["generate", *filled]) == exits.USAGE
    said = capsys.readouterr()
    assert named in said.err
    assert "Traceback" not in said.err
    assert said.out == ""


@pytest.mark.long
def test_a_fresh_process_answers_paris() -> None:
    command = [sys.executable, "-c", MAIN, "generate", "smollm2-135m", QUESTION]
    run = subprocess.run([*command, "--chat"], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (exits.OK, "")
    assert "Paris" in run.stdout
