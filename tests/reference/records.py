"""What the reference engine keeps beside the declaration's records: tokens, tables, deadlines."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from kvproof.statemachine import EndsBy, RequestFacts, TransferFacts
from kvproof.statemachine.states import LOAD

from .pool import Slots


@dataclass(frozen=True)
class Config:
    """Sizes, limits, and times in seconds."""

    blocks: int = 8
    block_size: int = 4
    max_running: int = 4
    token_budget: int = 16
    model_length: int = 32
    steps_ahead: int = 1
    loads_limit: int = 2
    fail_policy: str = "recompute"  # or "fail"
    client_deadline: float = 60.0  # a parked session's, a grammar's
    load_deadline: float = 60.0  # a request's wait for its load
    lease: float = 30.0  # a transfer's time until it is cancelled
    cancel_lease: float = 10.0  # a cancelled one's until it is in quarantine


@dataclass(eq=False)
class Request:
    """A request, or a session. `tokens` is all that is known, in order: it is what is computed."""

    id: str
    tokens: list[int]
    max_tokens: int  # of the present turn
    stop_every: int = 0
    send: bool = False  # its KV is sent to a peer when it is done
    facts: RequestFacts = field(default_factory=RequestFacts)
    delivered: list[int] = field(default_factory=list)
    chunks: list[tuple[list[int], int]] = field(default_factory=list)  # tokens, max_tokens
    table: list[int] = field(default_factory=list)
    loads_from: int = 0  # the block of its table at which its load begins
    deadline: float = math.inf


@dataclass(eq=False)
class Transfer:
    """A copy between the device's blocks and a tier."""

    number: int
    kind: int  # LOAD or STORE
    request: str | None  # for whom it was started
    blocks: list[int]
    slots: list[Slots]  # what its blocks stand for
    facts: TransferFacts = field(default_factory=TransferFacts)
    waiters: list[Request] = field(default_factory=list)
    lease: float = math.inf

    @property
    def name(self) -> str:
        """As a holder."""
        return f"{'load' if self.kind == LOAD else 'store'} {self.number}"


@dataclass(eq=False)
class Row:
    """One request's part of a launched step."""

    request: Request
    start: int
    end: int
    table: list[int]
    known: list[int]  # tokens at the launch
    after: list[Row]  # rows in flight whose samples follow on `known`
    samples: bool
    root: int  # the epoch of the weights
    sampled: int | None = None

    def tokens(self) -> list[int]:
        """Its tokens at the time at which the device runs it."""
        return self.known + [row.sampled for row in self.after if row.sampled is not None]


@dataclass
class Step:
    """A launched step."""

    number: int
    rows: list[Row]


@dataclass(frozen=True)
class Holder:
    """Who refuses a reset, and how that ends."""

    kind: str  # REQUEST, LOAD or STORE
    owner: str
    ends_by: EndsBy
    force_would_let_go: bool


@dataclass(frozen=True)
class ResetAnswer:
    """How a reset was answered; `pending` if it waits."""

    success: bool
    tiers: tuple[str, ...] = ()
    holders: tuple[Holder, ...] = ()
    pending: bool = False
