"""What holds for every test session: Hypothesis settings, programs, no second copy of a package."""

import sys

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


_left_out: dict[str, int] = {}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test whose program is not installed is left out, or fails where it must not be."""
    for mark in item.iter_markers("programs"):
        absent = missing(mark.args)
        if absent:
            words = f"not installed: {', '.join(absent)} (tests/install_programs.sh)"
            if required():
                pytest.fail(words, pytrace=False)
            _left_out[words] = _left_out.get(words, 0) + 1
            pytest.skip(words)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for words, count in _left_out.items():
        terminalreporter.write_line(f"{count} tests left out: {words}", yellow=True)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    copies = second_copies(sys.modules)
    if copies:
        sys.stderr.write(
            f"\nimported from the top-level folders: {', '.join(copies)}; "
            "import them as kvproof.statemachine, kvproof.runtime, kvproof.specs\n"
        )
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
