"""Lines that a specification may lack: found by templates, states that were explored, and Z3.

When a line of the specification is refuted and no script reaches the state that refutes it, the
invariant is too weak: it allows a state that cannot be. `suggest` looks for a line that forbids
it, holds at the start, and is kept by every action.
"""

from .choose import Suggestion, suggest

__all__ = ["Suggestion", "suggest"]
