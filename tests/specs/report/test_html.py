"""`kvproof check --html`: one page that says it all, and that a browser shows without a network."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from kvproof.specs.cli import exits, main
from kvproof.specs.report import page
from kvproof.specs.report.sequence import Message, message, svg

from .browser import Shown, show

#: Colours of what only a drawn picture has: an arrow, the last one, what is broken.
BLUE, RED, PINK = "0366d6", "d73a49", "fff0f0"


@pytest.fixture(scope="session")
def sound_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("html")
    file = folder / "report.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVPROOF_CACHE", str(folder / "cache"))
        assert main(["check", "--id", "P1", "--id", "S6", "--html", str(file)]) == exits.OK
    return file


@pytest.fixture(scope="session")
def sound(sound_file: Path) -> Shown:
    return show(sound_file)


@pytest.fixture(scope="session")
def broken(faulty: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Shown:
    file = tmp_path_factory.mktemp("html") / "broken.html"
    file.write_text(page(faulty, {}), encoding="utf-8")
    return show(file)


def words(markup: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", markup).split())


def test_the_page_names_nothing_outside_of_itself(sound_file: Path) -> None:
    text = sound_file.read_text(encoding="utf-8")
    # The one address in it is the name of SVG, which nobody opens.
    assert set(re.findall(r"\w+://[^\s\"'<)]+", text)) == {"http://www.w3.org/2000/svg"}
    assert set(re.findall(r"(?:src|href)=\"(.)", text)) == {"#"}
    assert not re.search(r"<script|<link|<iframe|<img|@import|url\(", text)
    assert "default-src 'none'" in text


def test_every_link_of_the_page_leads_somewhere_in_it(sound_file: Path) -> None:
    text = sound_file.read_text(encoding="utf-8")
    assert set(re.findall(r'href="#([^"]+)"', text)) <= set(re.findall(r'id="([^"]+)"', text))


def test_the_page_has_tables_formulas_assumptions_and_what_is_not_proved(sound_file: Path) -> None:
    text = words(sound_file.read_text(encoding="utf-8"))
    for part in (
        "when a forced reset is refused there is a transfer to name",
        "no request by itself: only a request that waits for a transfer refuses a forced reset",
        "request_refuses(",
        "a launched step is processed",
        "Of what events are told",
        "the model and the kernels: compared with a reference",
        "it makes room and recomputes",
    ):
        assert part in text, part
    assert "Counterexamples" not in text


@pytest.mark.programs("chromium")
def test_a_browser_shows_the_text_and_complains_of_nothing(sound: Shown) -> None:
    assert "when a forced reset is refused there is a transfer to name" in words(sound.dom)
    assert "proved" in words(sound.dom)
    assert sound.console == ()


@pytest.mark.programs("chromium")
def test_a_browser_draws_the_lifecycle(sound: Shown) -> None:
    assert sound.area(BLUE) > 2000
    assert sound.area(RED) > 500


@pytest.mark.programs("chromium")
def test_a_browser_shows_a_counterexample_as_a_sequence_picture(broken: Shown) -> None:
    text = words(broken.dom)
    assert broken.console == ()
    assert "Counterexamples S2 consecution: what a launched step may touch has a hold" in text
    assert "The shortest script of events from the start that gets there." in text
    steps = re.search(r'<svg[^>]*class="sequence".*?</svg>', broken.dom, re.DOTALL)
    assert steps is not None
    for label in ("client", "1. add r0 one token", "4. preempt r0"):
        assert f">{label}</text>" in steps[0]
    assert broken.area(PINK) > 5000


@pytest.mark.programs("chromium")
def test_what_a_page_complains_of_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "bad.html"
    policy = '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'">'
    file.write_text(f"<!doctype html>{policy}<img src='https://example.invalid/x.png'>")
    # The browser's processes write into one log, where their lines may run together.
    assert any("Content Security Policy" in complaint for complaint in show(file).console)


def test_an_undecided_obligation_is_on_the_page(undecided: dict[str, Any]) -> None:
    text = words(page(undecided, {}))
    assert "P1 is undecided" in text
    assert '<p class="verdict unknown">' in page(undecided, {})


def test_what_comes_from_outside_is_no_markup(faulty: dict[str, Any]) -> None:
    evil = {**faulty, "vacuous": ["<script>alert(1)</script>"]}
    assert "<script>" not in page(evil, {"S2": ["<b>"]})
    assert "&lt;script&gt;" in page(evil, {"S2": ["<b>"]})


@pytest.mark.parametrize(
    ("words_", "sender", "receiver"),
    [
        ("add r0 one token", "client", "r0"),
        ("reset, forced with the tier", "client", "engine"),
        ("step_processed", "device", "engine"),
        ("fail t1: its blocks are complete", "connector", "t1"),
        ("lease_over t0", "clock", "t0"),
        ("admit_remote r1: 0 hits, 1 fresh, t0 starts", "engine", "r1"),
        ("block 0 is evicted", "engine", "engine"),
        ("pause keep", "operator", "engine"),
    ],
)
def test_a_step_goes_from_who_sends_it_to_whom_it_is_about(
    words_: str, sender: str, receiver: str
) -> None:
    assert message(words_) == Message(sender, receiver, words_)


def test_a_picture_has_a_lane_for_each_party_and_an_arrow_for_each_message() -> None:
    picture = svg([Message("client", "r0", "add <r0>"), Message("engine", "engine", "waits")],
                  "S1: & more", "title")  # fmt: skip
    assert picture.count("<rect") == 1 + 3 + 1
    assert "1. add &lt;r0&gt;" in picture
    assert "S1: &amp; more" in picture
