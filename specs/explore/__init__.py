"""Exhaustive exploration: every state of a finite instance of the declaration, breadth first."""
