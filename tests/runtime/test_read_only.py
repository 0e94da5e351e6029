"""The lifecycle is the only writer: what can be reached from it by public names is read-only."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from kvproof.runtime.lifecycle import Lifecycle
from kvproof.statemachine.facts import Record

from .lifecycles import Peopled, picture

#: Values that nobody can change.
PLAIN = (int, float, str, bytes, bool, type(None), np.integer, type)


def public(value: object) -> Iterator[str]:
    return (name for name in dir(value) if not name.startswith("_"))


class Walk:
    """Everything that can be reached by public attributes, from the lifecycle on."""

    def __init__(self) -> None:
        self.visited: list[str] = []
        self._seen: list[object] = []  # kept, so that no address is used twice

    def into(self, path: str, value: object, own: bool) -> None:
        """`own`: asking once more gives another object, so a write to this one tells nobody."""
        if isinstance(value, PLAIN) or any(value is each for each in self._seen):
            return
        self._seen.append(value)
        self.visited.append(path)
        if isinstance(value, np.ndarray):
            self._array(path, value)
        elif isinstance(value, memoryview):
            assert value.readonly, path
        elif isinstance(value, Mapping):
            assert isinstance(value, MappingProxyType), f"{path} can be written to"
            for key, item in value.items():
                self.into(f"{path}[{key}]", item, own=False)
        elif isinstance(value, tuple):
            names = getattr(value, "_fields", None)
            for place, item in enumerate(value):
                step = f"[{place}]" if names is None else f".{names[place]}"
                self.into(path + step, item, own=False)
            for name in names or ():
                self._cannot_be_set(path, value, name)
        elif isinstance(value, list):
            assert own, f"{path} is the lifecycle's own list"
            for place, item in enumerate(value):
                self.into(f"{path}[{place}]", item, own=False)
        elif isinstance(value, Record):
            assert own, f"{path} is the lifecycle's own record"
        elif not callable(value):
            self._attributes(path, value)

    def _array(self, path: str, value: np.ndarray[Any, Any]) -> None:
        assert not value.flags.writeable, f"{path} can be written to"
        if value.size:
            with pytest.raises(ValueError, match="read-only"):
                value[...] = 7

    def _attributes(self, path: str, value: object) -> None:
        for name in public(value):
            found = getattr(value, name)
            if inspect.ismethod(found) or inspect.isbuiltin(found):
                continue
            self._cannot_be_set(path, value, name)
            again = getattr(value, name)
            self.into(f"{path}.{name}", found, own=again is not found)

    def _cannot_be_set(self, path: str, value: object, name: str) -> None:
        with pytest.raises(AttributeError):
            setattr(value, name, getattr(value, name))
        with pytest.raises(AttributeError):
            delattr(value, name)
        assert hasattr(value, name), f"{path}.{name}"


def walked(engine: Lifecycle) -> Walk:
    walk = Walk()
    walk._attributes("lifecycle", engine)
    return walk


def test_no_public_attribute_of_the_lifecycle_and_of_what_it_shows_can_be_written() -> None:
    people = Peopled()
    people.engine.settle(3, np.array([1, 2], dtype=np.int32))
    people.step((people.running, people.session), (1, 1))
    people.engine.preempt(people.session, forced=True)  # a STEP hold
    before = picture(people.engine)
    visited = walked(people.engine).visited
    assert picture(people.engine) == before
    people.engine.check()
    for path in (
        "lifecycle.view.state", "lifecycle.ledger.counts", "lifecycle.ledger.index.cached",
        "lifecycle.ledger.being_written", "lifecycle.ledger.step_holds[4][0].blocks",
        "lifecycle.ledger.pool", "lifecycle.running", "lifecycle.running.array",
        "lifecycle.blocked", "lifecycle.finished", "lifecycle.ignored", "lifecycle.transfers[1]",
        "lifecycle.transfers[1].waiters", "lifecycle.transfers[1].blocks",
        "lifecycle.transfers[1].facts", "lifecycle.newest_rows",
        "lifecycle.steps_in_flight[0].counts", "lifecycle.config", "lifecycle.hasher",
    ):  # fmt: skip
        assert path in visited, f"the walk has not come to {path}"


def test_what_is_shown_of_a_part_has_none_of_the_parts_writers() -> None:
    """A method of the ledger, the pool, the index or a container that writes is not there."""
    engine = Peopled().engine
    writers = {
        "add", "remove", "absorb", "take", "put_uncached", "put_cached", "forget_all",
        "drop_cached", "publish", "drop", "clear", "take_fresh", "take_one_each", "acquire",
        "release", "release_many", "hand_over", "end_step", "release_and_forget", "begin_writing",
        "end_writing", "quarantine", "end_quarantine", "pop", "append", "extend", "update",
    }  # fmt: skip
    ledger, inner = engine.ledger, engine._ledger
    written = {*public(inner), *public(inner.pool), *public(inner.index), *public(engine._running)}
    for shown in (ledger, ledger.pool, ledger.index, engine.running, engine.waiting):
        assert not writers & set(public(shown)), f"{type(shown).__name__} writes"
        written -= set(public(shown))
    assert written - writers <= {"published", "are_hits", "entries"}, "a writer, or nobody's"


#: The lifecycle's own files, and those that repeat and check what it does.
ITS_OWN = {
    "state.py", "hold_commands.py", "events.py", "transfer_records.py", "transfer_events.py",
    "steps.py", "lifecycle.py", "audit.py", "replay.py", "block_replay.py",
}  # fmt: skip
RUNTIME = Path(inspect.getfile(Lifecycle)).parent


def reaches_within(source: str) -> list[str]:
    """The private attributes of a lifecycle, or of what it shows, that the source names."""
    shown = ("lifecycle", "_lifecycle", "ledger", "view")
    return [
        f"{node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_")
        if getattr(node.value, "attr", getattr(node.value, "id", "")) in shown
    ]


def test_no_other_module_reaches_within_the_lifecycle() -> None:
    """What no public name lets others write, they do not write by a private one."""
    others = [path for path in RUNTIME.rglob("*.py") if path.name not in ITS_OWN]
    assert len(others) > 50
    found = {str(path): reaches_within(path.read_text()) for path in others}
    assert {path: names for path, names in found.items() if names} == {}
    assert reaches_within("self.lifecycle._facts[0, row] = 6") == ["1: self.lifecycle._facts"]
    assert reaches_within("lifecycle.ledger._ledger.release(x)"), "also by what it shows"


@pytest.mark.parametrize("fault", ["ignored", "counts", "running", "view", "rows", "engine"])
def test_what_can_be_written_is_found(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    people = Peopled()
    engine = people.engine
    shown: dict[str, Any] = {
        "ignored": engine._ignored,
        "counts": engine._ledger.counts,
        "running": [1, 2],
        "view": type("View", (), {"state": 1})(),
        "rows": engine._running,
        "engine": engine._engine,
    }
    monkeypatch.setattr(Lifecycle, "running", property(lambda self: shown[fault]))
    if fault in ("view", "rows"):
        monkeypatch.setattr(type(shown[fault]), "told", 1, raising=False)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        walked(engine)
