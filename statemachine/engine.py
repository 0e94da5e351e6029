"""The engine's table: what pause, sleep, wake, reset and shutdown do to the engine as a whole.

Signals, leases and processed steps are taken in every mode, or nothing in flight would ever end.
What can fail is checked before anything irreversible is done; a call that fails goes back to
where it started.
"""

from __future__ import annotations

from .answers import IGNORE, NOT_NOW, REJECT
from .compile import compile_table
from .facts import EngineAsk, EngineFacts
from .gates import finishes_work
from .states import (
    ABORT_ALL,
    ACTIVE,
    CACHE,
    DRAINING,
    KEEP_ALL,
    PAUSED,
    PAUSING,
    SLEEPING,
    STOPPED,
    WAIT_FOR_ALL,
    WAKING,
    WEIGHTS,
    EngineEvent,
    EngineMode,
)
from .table import Row, Table, others

# --- guards -------------------------------------------------------------------------------------


def steps_may_start(e: EngineFacts, x: EngineAsk) -> bool:
    return finishes_work(e)


def memory_resident(e: EngineFacts, x: EngineAsk) -> bool:
    return e.weights_resident and e.cache_resident


def too_many_steps(e: EngineFacts, x: EngineAsk) -> bool:
    return e.launched - e.processed >= e.steps_ahead


def next_to_process(e: EngineFacts, x: EngineAsk) -> bool:
    return x.step == e.processed + 1 and x.step <= e.launched


def pause_mode_known(e: EngineFacts, x: EngineAsk) -> bool:
    return x.pausing == ABORT_ALL or x.pausing == WAIT_FOR_ALL or x.pausing == KEEP_ALL


def same_pause(e: EngineFacts, x: EngineAsk) -> bool:
    return x.pausing == e.pausing and not e.sleep_paused


def steps_in_flight(e: EngineFacts, x: EngineAsk) -> bool:
    return e.launched > e.processed


def still_running(e: EngineFacts, x: EngineAsk) -> bool:
    """A pause that keeps all leaves running requests as they are; the others wait for their end."""
    return e.pausing != KEEP_ALL and x.running > 0


def level_known(e: EngineFacts, x: EngineAsk) -> bool:
    return x.level == 1 or x.level == 2


def same_level(e: EngineFacts, x: EngineAsk) -> bool:
    return x.level == e.sleep_level


def holders_left(e: EngineFacts, x: EngineAsk) -> bool:
    """A forced reset would be refused: a transfer has not ended."""
    return x.holders > 0


def quarantine_left(e: EngineFacts, x: EngineAsk) -> bool:
    """Memory that somebody may still write to cannot be given back."""
    return e.quarantined > 0


def holds_left(e: EngineFacts, x: EngineAsk) -> bool:
    return x.holds > 0


def paused_by_sleep(e: EngineFacts, x: EngineAsk) -> bool:
    return e.sleep_paused


def names_tags(e: EngineFacts, x: EngineAsk) -> bool:
    return x.tags == WEIGHTS or x.tags == CACHE or x.tags == WEIGHTS + CACHE


def brings_all_back(e: EngineFacts, x: EngineAsk) -> bool:
    return (e.weights_resident or x.tags == WEIGHTS or x.tags == WEIGHTS + CACHE) and (
        e.cache_resident or x.tags == CACHE or x.tags == WEIGHTS + CACHE
    )


def work_left(e: EngineFacts, x: EngineAsk) -> bool:
    return x.live > 0 or x.holds > 0 or e.launched > e.processed


def already_pending(e: EngineFacts, x: EngineAsk) -> bool:
    return e.pending_reset


# --- effects ------------------------------------------------------------------------------------


def number_step(e: EngineFacts, x: EngineAsk) -> int:
    e.launched = e.launched + 1
    return 0


def process_step(e: EngineFacts, x: EngineAsk) -> int:
    e.processed = x.step
    return 0


def begin_pause(e: EngineFacts, x: EngineAsk) -> int:
    e.pausing = x.pausing
    e.sleep_paused = False
    return 0


def begin_pause_to_sleep(e: EngineFacts, x: EngineAsk) -> int:
    e.pausing = x.pausing
    e.sleep_paused = True
    return 0


def end_pause(e: EngineFacts, x: EngineAsk) -> int:
    e.pausing = 0
    e.sleep_paused = False
    return 0


def adopt_pause(e: EngineFacts, x: EngineAsk) -> int:
    """The client asks for the pause that a sleep has made: waking no longer resumes."""
    e.sleep_paused = False
    return 0


def discard_memory(e: EngineFacts, x: EngineAsk) -> int:
    e.sleep_level = x.level
    e.weights_resident = False
    e.cache_resident = False
    return 0


def restore_memory(e: EngineFacts, x: EngineAsk) -> int:
    if x.tags != CACHE:
        e.weights_resident = True
    if x.tags != WEIGHTS:
        e.cache_resident = True
    return 0


def end_sleep(e: EngineFacts, x: EngineAsk) -> int:
    e.sleep_level = 0
    return 0


def move_epoch(e: EngineFacts, x: EngineAsk) -> int:
    e.epoch = e.epoch + 1
    return 0


def pend_reset(e: EngineFacts, x: EngineAsk) -> int:
    e.pending_reset = True
    return 0


def decide_reset(e: EngineFacts, x: EngineAsk) -> int:
    e.pending_reset = False
    return 0


# --- the table ----------------------------------------------------------------------------------

E = EngineEvent
ALL = tuple(int(mode) for mode in EngineMode)
ASLEEP = (SLEEPING, WAKING)
ENDING = (DRAINING, STOPPED)
STEPPING = (ACTIVE, PAUSING, DRAINING)


def _not_in(*named: tuple[int, ...]) -> tuple[int, ...]:
    return others(EngineMode, *named)


# One line or two a row: the table is to be read as a table.
# fmt: off
ROWS = (
    # what clients and the outside send
    Row(E.ADD, _not_in(ENDING), why="taken in; it runs when the engine does"),
    Row(E.ADD, ENDING, answer=REJECT, why="the engine is shutting down"),
    Row(E.CHUNK, _not_in(ENDING), why="taken in; it starts nothing while paused"),
    Row(E.CHUNK, ENDING, answer=REJECT, why="the engine is shutting down"),
    Row(E.SIGNAL, _not_in((STOPPED,)), why="processed in every mode"),
    Row(E.SIGNAL, (STOPPED,), answer=IGNORE, why="the engine has stopped"),
    Row(E.LEASE, _not_in((STOPPED,)), why="leases run in every mode"),
    Row(E.LEASE, (STOPPED,), answer=IGNORE, why="the engine has stopped"),
    # steps
    Row(E.LAUNCH_STEP, STEPPING, unless=(steps_may_start,), answer=NOT_NOW,
        why="this pause lets no step start"),
    Row(E.LAUNCH_STEP, STEPPING, unless=(memory_resident,), answer=NOT_NOW,
        why="weights or cache are asleep"),
    Row(E.LAUNCH_STEP, STEPPING, conditions=(too_many_steps,), answer=NOT_NOW,
        why="as many steps are in flight as may be"),
    Row(E.LAUNCH_STEP, STEPPING, before=(number_step,), why="the next step"),
    Row(E.LAUNCH_STEP, _not_in(STEPPING), answer=NOT_NOW, why="no step starts in this mode"),
    Row(E.STEP_PROCESSED, ALL, unless=(next_to_process,), answer=IGNORE,
        why="not the next step to be processed"),
    Row(E.STEP_PROCESSED, ALL, before=(process_step,), why="its results are in"),
    # pause
    Row(E.PAUSE, _not_in(ENDING), unless=(pause_mode_known,), answer=REJECT,
        why="the mode is abort, wait or keep"),
    Row(E.PAUSE, (ACTIVE,), PAUSING, before=(begin_pause,), why="it pauses"),
    Row(E.PAUSE, (PAUSING,), conditions=(same_pause,), answer=IGNORE, why="it is pausing already"),
    Row(E.PAUSE, (PAUSING,), answer=REJECT, why="another pause is under way"),
    Row(E.PAUSE, (PAUSED,), conditions=(paused_by_sleep,), before=(adopt_pause,),
        why="the sleep's pause becomes the client's"),
    Row(E.PAUSE, (PAUSED,), answer=IGNORE, why="it is paused already"),
    Row(E.PAUSE, ASLEEP, conditions=(paused_by_sleep,), before=(adopt_pause,),
        why="waking will not resume"),
    Row(E.PAUSE, ASLEEP, answer=IGNORE, why="it is paused already"),
    Row(E.PAUSE, ENDING, answer=REJECT, why="the engine is shutting down"),
    Row(E.PAUSE_REACHED, (PAUSING,), conditions=(steps_in_flight,), answer=NOT_NOW,
        why="a launched step is not processed"),
    Row(E.PAUSE_REACHED, (PAUSING,), conditions=(still_running,), answer=NOT_NOW,
        why="requests still run"),
    Row(E.PAUSE_REACHED, (PAUSING,), PAUSED, why="nothing runs"),
    Row(E.PAUSE_REACHED, _not_in((PAUSING,)), answer=IGNORE, why="it is not pausing"),
    Row(E.PAUSE_FAILED, (PAUSING,), ACTIVE, before=(end_pause,), why="back to where it was"),
    Row(E.PAUSE_FAILED, _not_in((PAUSING,)), answer=IGNORE, why="it is not pausing"),
    Row(E.RESUME, (PAUSED, PAUSING), ACTIVE, before=(end_pause,), why="it goes on"),
    Row(E.RESUME, (ACTIVE,), answer=IGNORE, why="it is not paused"),
    Row(E.RESUME, ASLEEP, answer=REJECT, why="it is asleep: wake it first"),
    Row(E.RESUME, ENDING, answer=REJECT, why="the engine is shutting down"),
    # sleep and wake
    Row(E.SLEEP, _not_in(ENDING), unless=(level_known,), answer=REJECT, why="the level is 1 or 2"),
    Row(E.SLEEP, (ACTIVE,), unless=(pause_mode_known,), answer=REJECT,
        why="the mode is abort, wait or keep"),
    Row(E.SLEEP, (ACTIVE,), PAUSING, before=(begin_pause_to_sleep,), why="it pauses first"),
    Row(E.SLEEP, (PAUSING,), answer=NOT_NOW, why="it is pausing"),
    Row(E.SLEEP, (PAUSED,), conditions=(steps_in_flight,), answer=NOT_NOW,
        why="a launched step is not processed"),
    Row(E.SLEEP, (PAUSED,), conditions=(holders_left,), answer=NOT_NOW,
        why="a transfer has not ended"),
    Row(E.SLEEP, (PAUSED,), conditions=(quarantine_left,), answer=NOT_NOW,
        why="a block is in quarantine"),
    Row(E.SLEEP, (PAUSED,), conditions=(holds_left,), answer=NOT_NOW, why="a hold is left"),
    Row(E.SLEEP, (PAUSED,), SLEEPING, before=(discard_memory,), why="its memory is given back"),
    Row(E.SLEEP, ASLEEP, conditions=(same_level,), answer=IGNORE, why="it sleeps already"),
    Row(E.SLEEP, ASLEEP, answer=REJECT, why="it sleeps at another level"),
    Row(E.SLEEP, ENDING, answer=REJECT, why="the engine is shutting down"),
    Row(E.SLEEP_FAILED, (PAUSING, PAUSED), ACTIVE, conditions=(paused_by_sleep,),
        before=(end_pause,), why="back to where it was"),
    Row(E.SLEEP_FAILED, ALL, answer=IGNORE, why="no pause of a sleep is to be undone"),
    Row(E.WAKE, (SLEEPING, WAKING), unless=(names_tags,), answer=REJECT,
        why="the tags are weights, cache or both"),
    Row(E.WAKE, (SLEEPING,), WAKING, why="memory comes back"),
    Row(E.WAKE, (WAKING,), answer=NOT_NOW, why="it is waking"),
    Row(E.WAKE, (ACTIVE, PAUSING, PAUSED), answer=IGNORE, why="it is awake"),
    Row(E.WAKE, ENDING, answer=REJECT, why="the engine is shutting down"),
    Row(E.WOKE, (WAKING,), unless=(names_tags,), answer=REJECT,
        why="the tags are weights, cache or both"),
    Row(E.WOKE, (WAKING,), SLEEPING, unless=(brings_all_back,), before=(restore_memory,),
        why="a part of it is still asleep"),
    Row(E.WOKE, (WAKING,), ACTIVE, conditions=(paused_by_sleep,),
        before=(restore_memory, end_sleep, end_pause), why="the sleep did the pausing"),
    Row(E.WOKE, (WAKING,), PAUSED, before=(restore_memory, end_sleep), why="it was paused before"),
    Row(E.WOKE, _not_in((WAKING,)), answer=IGNORE, why="it is not waking"),
    Row(E.WAKE_FAILED, (WAKING,), SLEEPING, why="back to where it was"),
    Row(E.WAKE_FAILED, _not_in((WAKING,)), answer=IGNORE, why="it is not waking"),
    # reset
    Row(E.RESET, _not_in((STOPPED,)), why="decided by the holders"),
    Row(E.RESET, (STOPPED,), answer=REJECT, why="the engine has stopped"),
    Row(E.RESET_PENDING, _not_in(ENDING), conditions=(already_pending,), answer=IGNORE,
        why="a reset is pending already"),
    Row(E.RESET_PENDING, _not_in(ENDING), before=(pend_reset,),
        why="nothing starts that would delay it"),
    Row(E.RESET_PENDING, ENDING, answer=REJECT, why="the engine is shutting down"),
    Row(E.RESET_DECIDED, _not_in(ENDING), unless=(already_pending,), answer=IGNORE,
        why="no reset is pending"),
    Row(E.RESET_DECIDED, _not_in(ENDING), before=(decide_reset,),
        why="done, timed out, or its client is gone"),
    Row(E.RESET_DECIDED, ENDING, answer=IGNORE, why="the shutdown decided it"),
    Row(E.WEIGHTS_CHANGED, (PAUSED, SLEEPING), conditions=(holds_left,), answer=NOT_NOW,
        why="a hold is left"),
    Row(E.WEIGHTS_CHANGED, (PAUSED, SLEEPING), conditions=(steps_in_flight,), answer=NOT_NOW,
        why="a launched step is not processed"),
    Row(E.WEIGHTS_CHANGED, (PAUSED, SLEEPING), before=(move_epoch,),
        why="no older block can be a hit, in any tier"),
    Row(E.WEIGHTS_CHANGED, others(EngineMode, (PAUSED, SLEEPING)), answer=REJECT,
        why="pause first"),
    # the end
    Row(E.SHUTDOWN, _not_in(ENDING), DRAINING, before=(decide_reset, end_pause),
        why="nothing new is taken; what cannot run, asleep as it is, is ended by the engine"),
    Row(E.SHUTDOWN, ENDING, answer=IGNORE, why="it is shutting down already"),
    Row(E.DRAINED, (DRAINING,), conditions=(work_left,), answer=NOT_NOW, why="work is left"),
    Row(E.DRAINED, (DRAINING,), STOPPED, why="nothing is left"),
    Row(E.DRAINED, _not_in((DRAINING,)), answer=IGNORE, why="it is not draining"),
)
# fmt: on

ENGINE_TABLE = Table("engine", ("e", "x"), "mode", EngineMode, EngineEvent, ROWS)
ENGINE = compile_table(ENGINE_TABLE)
