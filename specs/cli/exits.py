"""What an exit code of `kvproof` means. A refusal is never mistaken for a verdict.

Codes that only one command uses in its own sense (1 of `fuzz`: failures were found) are named
here too, so that no two senses meet in one command.
"""

OK = 0
"""Everything that was asked for holds."""

FAILED = 1
"""`fuzz` wrote failures; a row of `demo` does not hold; a mutant survives; what is no verdict."""

REFUTED = 2
"""A counterexample, or a trace's first departure, was found and printed."""

UNDECIDED = 3
"""A solver gave up within its budget. Never a pass."""

USAGE = 4
"""A bad specification or usage; an extra that is not installed; nothing in a trace matched."""

DISAGREE = 5
"""Two solvers gave different answers to the same condition."""
