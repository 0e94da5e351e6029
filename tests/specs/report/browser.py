"""A headless Chromium: the page as it is in the end, what it complained of, how it looks."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

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
    with Image.open(picture) as image:
        pixels = np.asarray(image.convert("RGB"))
    return Shown(dumped.stdout, tuple(console), pixels)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
