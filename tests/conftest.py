"""What holds for every test session: Hypothesis settings, and no second copy of a package."""

import sys

import hypothesis
import pytest

from .second_copy import second_copies

# A deadline is a wall-clock assertion: on a busy machine it fails for no fault. The rest stays
# as Hypothesis chose it, which in CI (recognised by its environment) is a repeatable run.
hypothesis.settings.register_profile(
    "kvproof",
    parent=hypothesis.settings.get_profile(hypothesis.settings.get_current_profile_name()),
    deadline=None,
)
hypothesis.settings.load_profile("kvproof")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    copies = second_copies(sys.modules)
    if copies:
        sys.stderr.write(
            f"\nimported from the top-level folders: {', '.join(copies)}; "
            "import them as kvproof.statemachine, kvproof.runtime, kvproof.specs\n"
        )
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
