"""The engine that the declaration drives.

This package imports nothing here, so that the vLLM guard loads without the engine's dependencies.
"""
