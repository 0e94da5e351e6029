"""The engines that the fuzzer knows by name; any other is named as `module:Class`."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path

from ..mistakes import lacking
from ..target import Target

KNOWN = {
    "vllm": "kvproof.specs.fuzz.targets.vllm:VllmScheduler",
    "vllm-async": "kvproof.specs.fuzz.targets.vllm:VllmAsyncScheduler",
    "vllm-guarded": "kvproof.specs.fuzz.targets.vllm_guarded:GuardedVllmScheduler",
    "vllm-guarded-async": "kvproof.specs.fuzz.targets.vllm_guarded:GuardedVllmAsyncScheduler",
    "runtime": "kvproof.specs.fuzz.targets.runtime:RuntimeEngine",
}


class UnknownTargetError(ValueError):
    """There is no such target; the text says what would be one."""


def load(name: str) -> type[Target]:
    """The class that a name stands for.

    Raises UnknownTargetError when the name leads to no Target or to one that lacks methods, and
    ModuleNotFoundError when the target's own dependencies are missing.
    """
    module_name, _, class_name = KNOWN.get(name, name).partition(":")
    if not (module_name and class_name):
        raise UnknownTargetError(
            f"{name} is no target: use one of {', '.join(KNOWN)}, or module:Class"
        )
    here = str(Path.cwd())
    if here not in sys.path and name not in KNOWN:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and module_name.startswith(error.name):
            raise UnknownTargetError(f"there is no module {module_name}") from error
        raise
    except Exception as error:
        if name in KNOWN:
            raise
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise UnknownTargetError(
            f"{module_name} cannot be imported: {type(error).__name__}: {error} "
            f"({where.filename}:{where.lineno})"
        ) from error
    found = getattr(module, class_name, None)
    if not (isinstance(found, type) and issubclass(found, Target)):
        raise UnknownTargetError(f"{module_name} has no Target named {class_name}")
    if missing := lacking(found):
        raise UnknownTargetError(missing)
    return found
