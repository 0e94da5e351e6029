"""The typed errors of the declaration."""

from __future__ import annotations

from collections.abc import Sequence


class LifecycleError(Exception):
    """Base of every error that the lifecycle raises."""


class SpecificationError(LifecycleError):
    """A table that is not total, names what does not exist, or has rows that can never be taken."""


class RefusedError(LifecycleError):
    """An event that its caller may not send in this state. Nothing was changed.

    Attributes name the machine, the subject (its id), the state and event by name, why it was
    refused, and which events would have been legal in that state.
    """

    def __init__(
        self,
        machine: str,
        subject: str,
        state: str,
        event: str,
        why: str,
        legal: Sequence[str],
    ) -> None:
        self.machine = machine
        self.subject = subject
        self.state = state
        self.event = event
        self.why = why
        self.legal = tuple(legal)
        would_be = ", ".join(self.legal) or "nothing"
        super().__init__(
            f"{machine} {subject!r} in {state} refuses {event}: {why}. Legal here: {would_be}."
        )
