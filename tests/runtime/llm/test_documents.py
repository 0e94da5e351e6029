"""The manual's page on the Python API runs from top to bottom, on the real model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from kvproof.runtime import pretrained
from kvproof.runtime.model.load import LoadedModel
from kvproof.specs import cli
from kvproof.specs.cli import exits

PAGE = Path(__file__).resolve().parents[3] / "docs" / "python-api.md"


def test_the_page_on_the_python_api_runs(
    smollm2: LoadedModel,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(pretrained, "load_model", lambda *_: smollm2)
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    exec(compile("\n".join(snippets), str(PAGE), "exec"), {"__name__": "page"})
    assert "REQUEST WAITING_FOR_STREAMING_REQ" in capsys.readouterr().out
    assert cli.main(["conform", "trace.jsonl"]) == exits.OK
