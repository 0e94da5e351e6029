"""A headless Chromium: the page as it is in the end, what it complained of, how it looks."""

from __future__ import annotations

import re
import struct
import subprocess
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...programs import find


@dataclass(frozen=True)
class Shown:
    """A page that was opened."""

    dom: str
    console: tuple[str, ...]
    pixels: npt.NDArray[np.uint8]  # [height, width, 3]

    def area(self, colour: str) -> int:
        """How many pixels have about this colour, `rrggbb`."""
        wanted = np.array([int(colour[i : i + 2], 16) for i in (0, 2, 4)], dtype=np.int16)
        near = np.abs(self.pixels.astype(np.int16) - wanted).max(axis=2) <= 8
        return int(near.sum())


def show(page: Path, *, width: int = 1280, height: int = 2400) -> Shown:
    """Open a file, without a network."""
    browser = find("chromium")
    assert browser is not None
    picture = page.with_suffix(".png")
    common = [
        browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-extensions",
        "--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND",
        "--hide-scrollbars", "--enable-logging=stderr",
        f"--user-data-dir={page.parent / 'profile'}", f"--window-size={width},{height}",
    ]  # fmt: skip
    address = page.resolve().as_uri()
    dumped = _run([*common, "--dump-dom", address])
    photographed = _run([*common, f"--screenshot={picture}", address])
    console = re.findall(r"CONSOLE[^\]]*\] (.*)", dumped.stderr + photographed.stderr)
    return Shown(dumped.stdout, tuple(console), _pixels(picture.read_bytes()))


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)


def _pixels(data: bytes) -> npt.NDArray[np.uint8]:
    """A PNG of 8 bits a channel, not interlaced, as a browser writes it."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed, header = 8, b"", b""
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        header = body if kind == b"IHDR" else header
        packed += body if kind == b"IDAT" else b""
        at += size + 12
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", header)
    assert (depth, interlaced) == (8, 0)
    step = {2: 3, 6: 4}[colour]
    rows = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + width * step)
    out = np.zeros((height, width, step), np.uint8)
    above = np.zeros((width, step), np.uint8)
    for y in range(height):
        above = out[y] = _unfiltered(int(rows[y, 0]), rows[y, 1:].reshape(width, step), above)
    return out[:, :, :3]


def _unfiltered(
    kind: int, row: npt.NDArray[np.uint8], above: npt.NDArray[np.uint8]
) -> npt.NDArray[np.uint8]:
    if kind == 0:
        return row
    if kind == 1:
        return np.cumsum(row, axis=0, dtype=np.uint8)
    if kind == 2:
        return row + above
    out = np.zeros_like(row)
    left = np.zeros(row.shape[1], np.int16)
    corner = left
    for x in range(len(row)):
        up = above[x].astype(np.int16)
        if kind == 3:
            guess = (left + up) // 2
        else:
            to_left, to_up = np.abs(up - corner), np.abs(left - corner)
            to_corner = np.abs(left + up - 2 * corner)
            guess = np.where(
                (to_left <= to_up) & (to_left <= to_corner),
                left,
                np.where(to_up <= to_corner, up, corner),
            )
        out[x] = row[x] + guess.astype(np.uint8)
        left, corner = out[x].astype(np.int16), up
    return out
