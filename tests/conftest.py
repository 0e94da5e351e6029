"""What holds for every test session: Hypothesis settings, programs, no second copy of a package."""

import logging
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

from .programs import missing, required
from .second_copy import second_copies

# A deadline is a wall-clock assertion: on a busy machine it fails for no fault. The rest stays
# as Hypothesis chose it, which in CI (recognised by its environment) is a repeatable run.
hypothesis.settings.register_profile(
    "kvproof",
    parent=hypothesis.settings.get_profile(hypothesis.settings.get_current_profile_name()),
    deadline=None,
)
hypothesis.settings.load_profile("kvproof")


_NOT_INSTALLED = "not installed: "


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test whose program is not installed is left out, or fails where it must not be."""
    for mark in item.iter_markers("programs"):
        absent = missing(mark.args)
        if absent:
            words = f"{_NOT_INSTALLED}{', '.join(absent)} (tests/install_programs.sh)"
            if required():
                pytest.fail(words, pytrace=False)
            pytest.skip(words)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    for words, count in reasons.items():
        if words.startswith(_NOT_INSTALLED):
            terminalreporter.write_line(f"{count} tests left out: {words}", yellow=True)


@pytest.fixture(autouse=True)
def every_engine_that_is_tried_is_closed() -> Iterator[None]:
    """Until then the engine's log is mute, for the tests that follow as well."""
    yield
    assert logging.getLogger("kvproof.runtime").level != logging.CRITICAL


@pytest.fixture(scope="session", autouse=True)
def nothing_is_imported_twice() -> Iterator[None]:
    """At the end of all tests: a second copy's classes are not those of the first."""
    yield
    copies = second_copies(sys.modules)
    assert not copies, (
        f"imported from the top-level folders: {', '.join(copies)}; "
        "import them as kvproof.statemachine, kvproof.runtime, kvproof.specs"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One process for all tests of a folder, so that what they share is made once."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFolder(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid.partition("::")[0].rpartition("/")[0]

    return ByFolder(config, log)
