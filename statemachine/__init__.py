"""The declaration: the request lifecycle of an inference engine as data and small functions.

Standard library only. Read `request.ROWS` first, then `reset`.
"""

from .answers import Answer, Command, answer_of, commands_of, row_of
from .compile import Machine, compile_table
from .engine import ENGINE
from .errors import LifecycleError, RefusedError, SpecificationError
from .facts import (
    Ask,
    BlockFacts,
    EngineAsk,
    EngineFacts,
    RequestFacts,
    TransferAsk,
    TransferFacts,
)
from .machines import as_transitions_machine
from .request import REQUEST, container
from .reset import EndsBy, ResetOutcome
from .states import (
    Container,
    EngineEvent,
    EngineMode,
    HoldKind,
    PauseMode,
    RequestEvent,
    RequestState,
    TransferEvent,
    TransferState,
)
from .table import Row, Table
from .trace import Transition, parse_transition
from .transfer import TRANSFER

__all__ = [
    "ENGINE",
    "REQUEST",
    "TRANSFER",
    "Answer",
    "Ask",
    "BlockFacts",
    "Command",
    "Container",
    "EndsBy",
    "EngineAsk",
    "EngineEvent",
    "EngineFacts",
    "EngineMode",
    "HoldKind",
    "LifecycleError",
    "Machine",
    "PauseMode",
    "RefusedError",
    "RequestEvent",
    "RequestFacts",
    "RequestState",
    "ResetOutcome",
    "Row",
    "SpecificationError",
    "Table",
    "TransferAsk",
    "TransferEvent",
    "TransferFacts",
    "TransferState",
    "Transition",
    "answer_of",
    "as_transitions_machine",
    "commands_of",
    "compile_table",
    "container",
    "parse_transition",
    "row_of",
]
