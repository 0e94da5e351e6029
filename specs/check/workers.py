"""The same work on several processors: forked workers, each with what was proved before.

A worker is a copy of this process, so that it starts with all that the solver has decided and the
executor has run. Results come in the order of the work, whoever is first.
"""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

Work = TypeVar("Work")
Result = TypeVar("Result")


def spread(
    function: Callable[[Work], Result], items: Sequence[Work], jobs: int
) -> Iterator[Result]:
    """The results of a function, in order; with more than one job, by forked workers.

    Raises RuntimeError if a worker ends without its result.
    """
    if jobs < 2 or len(items) < 2:
        yield from map(function, items)
        return
    jobs = min(jobs, len(items))
    forked = multiprocessing.get_context("fork")
    gc.freeze()  # a collection in a worker would copy every page of what it shares
    pipes: dict[Connection, int] = {}
    workers = []
    for first in range(jobs):
        mine, theirs = forked.Pipe(duplex=False)
        worker = forked.Process(target=_work, args=(function, items[first::jobs], theirs))
        worker.start()
        theirs.close()
        pipes[mine] = first
        workers.append(worker)
    try:
        yield from _in_order(pipes, jobs, len(items))
    finally:
        gc.unfreeze()
        for worker in workers:
            worker.terminate()
            worker.join()


def _work(function: Callable[[Any], Any], items: Sequence[Any], to: Connection) -> None:
    for item in items:
        to.send(function(item))
    to.close()


def _in_order(pipes: dict[Connection, int], jobs: int, count: int) -> Iterator[Any]:
    """Worker w sends the results of items w, w + jobs, w + 2 * jobs, … in their order."""
    found: dict[int, Any] = {}
    due = dict(pipes)
    following = 0
    while following < count:
        for each in wait(list(due)):
            assert isinstance(each, Connection)
            try:
                found[due[each]] = each.recv()
            except EOFError as error:
                raise RuntimeError("a worker ended without its result") from error
            due[each] += jobs
            if due[each] >= count:
                del due[each]
        while following in found:
            yield found.pop(following)
            following += 1
