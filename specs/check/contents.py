"""The specification of what is in the block: nobody can hit what was not written (S10, S7).

A prefix is a number; the content of a block is the prefix that its KV was computed from, 0 while
it is incomplete or being overwritten. The hash function is assumed to be injective: a key is the
prefix, and the epoch of the weights.
"""

from __future__ import annotations

from ...statemachine.states import CANCELLING, IN_FLIGHT, LOAD, QUARANTINED, QUEUED
from ..symbolic.terms import BoolTerm, IntTerm
from .invariants import Invariant, _of
from .logic import among, both, either, implies, no, one, same, total
from .state import View

OPEN = (QUEUED, IN_FLIGHT, CANCELLING)


def end_of_block(s: View) -> IntTerm:
    """The tokens that the request's table holds up to the end of this block."""
    return (s.place.position + 1) * s.e.block_size


def in_table(s: View) -> BoolTerm:
    """The block is in the request's table."""
    return s.place.position >= 0


def load_writes(s: View) -> BoolTerm:
    """The transfer is a load whose hold covers the block."""
    return both(s.held.by_transfer, s.t.kind == LOAD)


def held_by_another(s: View) -> BoolTerm:
    """A request other than this one holds the block."""
    other = "" if s.request else "2"
    return either(s.at(request=other).held.by_request, s.others.request > 0)


# fmt: off
CONTENTS = _of(
    "S10",
    ("", "a cached block's hashed_as is its content_of, and it is written",
     lambda s: implies(s.b.cached, both(s.b.hashed_as == s.b.content_of, s.b.content_of > 0))),
    ("", "a block is being written exactly while a load's hold covers it, by one load at a time",
     lambda s: both(same(s.b.being_written, _loads(s) > 0), _loads(s) <= 1)),
    ("", "what is being written is no hit", lambda s: implies(s.b.being_written, no(s.b.cached))),
    ("r", "what the record calls written is really in the table",
     lambda s: s.r.written == s.place.written),
    ("r", "a block that is written up to its end has the request's prefix",
     lambda s: implies(in_table(s), both(
         s.place.prefix > 0,
         implies(end_of_block(s) <= s.place.written, s.b.content_of == s.place.prefix)))),
    ("r", "a hit in a table is among the request's published blocks: it writes there no more",
     lambda s: implies(both(in_table(s), s.b.cached), s.place.position < s.r.hashed)),
    ("r", "published blocks are written up to their end",
     lambda s: implies(s.place.position < s.r.hashed, end_of_block(s) <= s.r.written)),
    ("r", "a block that is not published, and that no load brings, is held by one request alone",
     lambda s: implies(both(in_table(s), s.place.position >= s.r.hashed, no(s.place.loading)),
                       no(held_by_another(s)))),
    ("r", "a load brings blocks only to who waits for it, and writes them meanwhile",
     lambda s: implies(s.place.loading,
                       both(in_table(s), s.r.waits_for > 0, s.b.being_written))),
    ("rt", "what a load brings is under the load's own hold",
     lambda s: implies(both(s.place.loading, s.r.waits_for == s.copy.number), load_writes(s))),
    ("rt", "a block that a load writes is held by requests that wait for the load alone",
     lambda s: implies(both(load_writes(s), s.held.by_request), both(
         s.place.loading, s.r.waits_for == s.copy.number, s.place.prefix == s.copy.prefix,
         end_of_block(s) > s.place.written))),
    ("t", "others hold a block that a load writes only while they wait for it",
     lambda s: implies(both(load_writes(s), s.others.request > 0), s.copy.others_waiting > 0)),
    ("t", "a load brings a prefix, and its blocks are incomplete until it has ended",
     lambda s: implies(load_writes(s), both(s.copy.prefix > 0, s.b.content_of == 0))),
)

EPOCHS = _of(
    "S7",
    ("r", "who is resident computes with the present weights",
     lambda s: implies(s.r.covered > 0, s.place.epoch == s.e.epoch)),
    ("", "no key is of weights to come",
     lambda s: both(implies(s.b.cached, s.more.epoch <= s.e.epoch),
                    implies(s.more.tier_present, s.more.tier_epoch <= s.e.epoch))),
)
# fmt: on


def _loads(s: View) -> IntTerm:
    return total([*(one(load_writes(s.at(transfer=each))) for each in ("", "2")), s.others.load])


__all__ = ["CONTENTS", "EPOCHS", "QUARANTINED", "Invariant", "among"]
