"""The C kernels of kernels/, compiled once for this machine; None where that cannot be.

torch has no fused kernel for a decode step's small operations on a CPU, and its attention wants
one call a request. With a C compiler at hand the gap is closed by a few files of loops; without
one everything works, slower. KVPROOF_NATIVE=0 turns it off. The library uses the OpenMP threads
that torch has started already: both name the same runtime.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from .zoo import cache_directory

_SOURCES = sorted(Path(__file__).with_name("kernels").glob("*.[ch]"))
_FLAGS: tuple[str, ...] = (
    "-O3",
    "-march=native",
    "-std=gnu11",
    "-fopenmp",
    "-fPIC",
    "-shared",
    # Sums may be reordered, which vectors need; NaN and infinity stay what they are.
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-fassociative-math",
    "-freciprocal-math",
    "-Wno-psabi",  # vectors are only passed to functions that are inlined
)
if platform.machine() in ("x86_64", "AMD64"):
    _FLAGS += ("-mprefer-vector-width=512",)  # memory is the limit, not the clock
_COMPILE_SECONDS = 300
_NAMES = {torch.float32: "f32", torch.bfloat16: "bf16"}
PANEL = 32
"""Columns of a packed weight that lie together: PANEL of kernels/products.c."""

_pointer, _integer, _float, _int = (
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_float,
    ctypes.c_int,
)
_ARGUMENTS: dict[str, list[Any]] = {
    "rms_norm": [*[_pointer] * 3, *[_integer] * 2, _float, _int],
    "add_rms_norm": [*[_pointer] * 4, *[_integer] * 2, _float, _int],
    "silu_mul": [*[_pointer] * 2, *[_integer] * 2, _int],
    "rotate_and_store": [*[_pointer] * 5, *[_integer] * 4, _int],
    "decode_attention": [
        _pointer, _integer, *[_pointer] * 6, *[_integer] * 6, _float, _int,
    ],
    "product": [*[_pointer] * 4, *[_integer] * 3, *[_int] * 2],
    "product_ready": [],
}  # fmt: skip

_log = logging.getLogger("kvproof.model")


class Native:
    """The kernels for one type; see kernels/ for their arguments."""

    def __init__(self, library: ctypes.CDLL, name: str) -> None:
        self.rms_norm = _function(library, "rms_norm", name)
        self.add_rms_norm = _function(library, "add_rms_norm", name)
        self.silu_mul = _function(library, "silu_mul", name)
        self.rotate_and_store = _function(library, "rotate_and_store", name)
        self.decode_attention = _function(library, "decode_attention", name)
        self.decode_attention.restype = _int
        self.product = _function(library, "product", name)
        ready = _function(library, "product_ready", name)
        ready.restype = _int
        #: Whether `product` works here: for bfloat16 it takes AMX and the kernel's permission.
        self.can_multiply = bool(ready())


def _function(library: ctypes.CDLL, kernel: str, name: str) -> ctypes._NamedFuncPointer:
    function = library[f"{kernel}_{name}"]
    function.argtypes = _ARGUMENTS[kernel]
    function.restype = None
    return function


def native(dtype: torch.dtype) -> Native | None:
    """The kernels for a type, or None: another type, no compiler, or turned off."""
    if dtype not in _NAMES or os.environ.get("KVPROOF_NATIVE", "1") == "0":
        return None
    library = _library()
    return None if library is None else Native(library, _NAMES[dtype])


@functools.cache
def _library() -> ctypes.CDLL | None:
    """The compiled library, from the cache or made now."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None or sys.platform == "win32":
        return None
    try:
        path = cache_directory() / "native" / f"{_fingerprint(compiler)}.so"
        if not path.is_file():
            _compile(compiler, path)
        return ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError) as error:
        _log.warning("C kernels are not used, decoding is slower: %s", error)
        return None


def _fingerprint(compiler: str) -> str:
    """Changes with the source, the flags, the compiler and the processor."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in _SOURCES))
    version = subprocess.run(
        [compiler, "--version"], capture_output=True, timeout=_COMPILE_SECONDS, check=True
    )
    digest.update(repr((_FLAGS, version.stdout, platform.machine(), _processor())).encode())
    return digest.hexdigest()[:32]


def _processor() -> str:
    """What -march=native looks at."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("flags", "model name"))}))


def _compile(compiler: str, path: Path) -> None:
    """Whole or absent: the library is made beside its place and renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        made = Path(scratch) / "native.so"
        units = [str(path) for path in _SOURCES if path.suffix == ".c"]
        command = [compiler, *_FLAGS, "-o", str(made), *units, "-lm"]
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False
        )
        if result.returncode != 0:
            last = result.stderr.strip().splitlines()[-1:] or ["no message"]
            raise OSError(f"{compiler} failed: {last[0]}")
        os.replace(made, path)
