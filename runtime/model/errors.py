"""What can be wrong with a model that a caller names: typed, and never without file or field."""

from __future__ import annotations

from pathlib import Path


class ModelError(Exception):
    """Base of everything that keeps a model from being loaded or used."""


class UnknownModelError(ModelError):
    """A name that is neither a known model nor a path."""


class ModelNotFetchedError(ModelError):
    """A known model that is not in the cache yet."""


class FetchError(ModelError):
    """A download that did not arrive, or arrived damaged. The cache is as it was."""


class ModelFileError(ModelError):
    """A file of a model is missing, truncated, misshapen or not what its name says."""

    def __init__(self, path: Path | str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = Path(path)
        self.problem = problem


class UnsupportedModelError(ModelError):
    """A well-formed model that this engine does not implement. `field` names what it asks for."""

    def __init__(self, path: Path | str, field: str, problem: str) -> None:
        super().__init__(f"{path}: {field}: {problem}")
        self.path = Path(path)
        self.field = field
        self.problem = problem


class ChatTemplateError(ModelError):
    """The model has no chat template, or the template refuses these messages."""


class StepInputError(ModelError):
    """A request's part of a step that cannot be computed: ids, tables or positions are off."""


class NonFiniteLogitsError(ModelError):
    """The model's output for a request is not a number."""


class StepFailedError(ModelError):
    """The device failed under a step; every request in it is told. The cause is chained."""
