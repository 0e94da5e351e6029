"""Checks production traces against the declaration: `kvproof conform`."""

from .replay import Departure, Replay, Verdict, conform

__all__ = ["Departure", "Replay", "Verdict", "conform"]
