"""A small engine with the real one's methods: each live request gets a token a tick.

The next token is a function of every token so far, so what a stream should say is known.
"""

import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future

from kvproof.runtime.api import (
    CallResult,
    DuplicateRequestError,
    EngineClosedError,
    EngineStats,
    FinishReason,
    Holder,
    RequestInfo,
    RequestOutput,
    ResetResult,
    SessionError,
    TokenLogprobs,
    UnknownRequestError,
)
from kvproof.runtime.model.text import TextStream
from kvproof.runtime.sampling_params import SamplingParams

ALPHABET = b"abcdefghijklmnopqrstuvwxyz "
_TOKENS: list[int] = []


def next_token(tokenizer, history: Sequence[int]) -> int:
    """What comes after these tokens."""
    at = (sum(history[-4:]) * 31 + len(history) * 7) % len(ALPHABET)
    if not _TOKENS:
        _TOKENS.extend(int(tokenizer.encode(chr(one))[0]) for one in ALPHABET)
    return _TOKENS[at]


def continuation(tokenizer, prompt: Sequence[int], count: int) -> list[int]:
    """The tokens that an undisturbed request gets."""
    history = list(prompt)
    for _ in range(count):
        history.append(next_token(tokenizer, history))
    return history[len(prompt) :]


def answered(value):
    """A future that has its result."""
    future = Future()
    future.set_result(value)
    return future


class _Request:
    def __init__(self, request_id, tokens, params, resumable, salt, priority, on_output):
        self.request_id = request_id
        self.history = [int(t) for t in tokens]
        self.prompt = len(self.history)
        self.params = params
        self.resumable = resumable
        self.salt = salt
        self.priority = priority
        self.on_output = on_output
        self.chunks = []
        self.input_open = resumable
        self.parked = False
        self.turn = 0
        self.turn_tokens = 0
        self.output_tokens = 0
        self.text = None


class StubEngine:
    """Threads and methods as the real engine has them."""

    def __init__(self, tokenizer, tick: float = 0.0) -> None:
        self.tokenizer = tokenizer
        self.tick = tick
        self.closed = False
        self.requests: dict[str, _Request] = {}
        self.frozen = threading.Event()  # while set, nobody gets a token
        self.start_afresh()
        self._lock = threading.RLock()
        self._moved = threading.Condition(self._lock)
        self._work: queue.SimpleQueue = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="stub-engine", daemon=True)
        self._thread.start()

    def start_afresh(self) -> None:
        """As it was made, for the next test."""
        self.requests.clear()
        self.frozen.clear()
        self.salts: dict[str, bytes] = {}
        self.priorities: dict[str, int] = {}
        self.sampling: dict[str, SamplingParams] = {}
        self.aborted: list[str] = []
        self.paused = False
        self.asleep = False
        self.unhealthy = ""
        self.refusals: list[Holder] = []  # what a reset is refused with
        self.resets: list = []  # those that wait

    def add_request(
        self, request_id, tokens, params, *, priority=0, resumable=False, salt=b"", on_output
    ):
        with self._lock:
            if self.closed:
                raise EngineClosedError("the engine is shutting down")
            if request_id in self.requests:
                raise DuplicateRequestError(f"{request_id} is live")
            self.salts[request_id] = salt
            self.priorities[request_id] = priority
            self.sampling[request_id] = params
            self.requests[request_id] = _Request(
                request_id, tokens, params, resumable, salt, priority, on_output
            )
            self._moved.notify_all()

    def add_chunk(self, request_id, tokens, params=None):
        with self._lock:
            request = self.requests.get(request_id)
            if request is None:
                raise UnknownRequestError(f"{request_id} is not known")
            if not request.input_open:
                raise SessionError(f"{request_id}: its input is closed")
            request.chunks.append((list(tokens), params))
            self._next_turn(request)

    def close_input(self, request_id):
        with self._lock:
            request = self.requests.get(request_id)
            if request is not None:
                request.input_open = False
                if request.parked:
                    self._finish(request, FinishReason.STOP)

    def abort(self, request_id):
        with self._lock:
            request = self.requests.get(request_id)
            if request is None:
                return False
            self.aborted.append(request_id)
            self._finish(request, FinishReason.ABORT)
            return True

    def begin_reset(self, reset_running_requests=False, reset_connector=False, wait=0.0):
        future = Future()
        self.resets.append((future, reset_connector))
        if not wait or not self.refusals:
            self.answer_resets()
        return future

    def answer_resets(self):
        while self.resets:
            future, connector = self.resets.pop()
            if self.refusals:
                answer = ResetResult(False, retryable=True, holders=tuple(self.refusals))
            else:
                answer = ResetResult(True, tiers=("device", "connector")[: 1 + connector])
            if future.set_running_or_notify_cancel():
                future.set_result(answer)

    def begin_pause(self, mode="abort", clear_cache=False):
        with self._lock:
            if mode == "abort":
                for request in list(self.requests.values()):
                    self._finish(request, FinishReason.ABORT)
            self.paused = True
        return answered(CallResult(True, "paused"))

    def resume(self):
        if self.asleep:
            return CallResult(False, "sleeping", "wake the engine first")
        self.paused = False
        return CallResult(True, "active")

    def begin_sleep(self, level=1, mode="abort"):
        if self.refusals:
            why = "a transfer holds blocks"
            return answered(CallResult(False, "active", why, True, tuple(self.refusals)))
        self.asleep = True
        return answered(CallResult(True, "sleeping"))

    def wake(self, tags=("weights", "cache")):
        self.asleep = set(tags) != {"weights", "cache"}
        return CallResult(True, "sleeping" if self.asleep else "active")

    def is_paused(self):
        return self.paused

    def is_sleeping(self):
        return self.asleep

    def holds(self):
        with self._lock:
            return [
                Holder("REQUEST", name, "RUNNING", 1, 0.0, 0.0) for name in self.requests
            ] + self.refusals

    def stats(self):
        with self._lock:
            parked = sum(one.parked for one in self.requests.values())
            return EngineStats(
                mode="active",
                waiting=0,
                blocked=0,
                running=len(self.requests) - parked,
                parked_sessions=parked,
                blocks_total=100,
                blocks_free=100 - len(self.requests),
                blocks_cached=0,
                blocks_quarantined=0,
                holds={"REQUEST": len(self.requests)},
                steps_launched=0,
                steps_processed=0,
                preemptions=0,
                prompt_tokens=0,
                generation_tokens=0,
                prefix_queries=0,
                prefix_hits=0,
                tier_loaded_bytes=0,
                tier_stored_bytes=0,
                finished={"stop": 1},
                ignored_signals={"output": 2},
                refused_resets={"LOAD": 3},
                watchdog_trips=0,
                stuck_for=0.0,
            )

    def request_info(self, request_id):
        if request_id not in self.requests:
            return None
        return RequestInfo(request_id, "RUNNING", "running", {"computed": 3}, [{"event": "add"}])

    def healthy(self):
        return not self.unhealthy, self.unhealthy

    def shutdown(self, drain=True, timeout=30.0):
        with self._lock:
            self.closed = True
            for request in list(self.requests.values()):
                request.input_open = False
                if request.parked or not drain:
                    self._finish(request, FinishReason.ABORT)
            self._moved.wait_for(lambda: not self.requests, timeout)
            for request in list(self.requests.values()):
                self._finish(request, FinishReason.ABORT)
        self._work.put(None)
        self._thread.join()

    def _loop(self):
        while True:
            if not self._work.empty():
                return
            with self._lock:
                busy = [r for r in self.requests.values() if not r.parked]
                if not busy or self.paused or self.frozen.is_set():
                    self._moved.wait(0.02)
                    continue
                for request in busy:
                    self._one_token(request)
            if self.tick:
                time.sleep(self.tick)

    def _one_token(self, request):
        params = request.params
        token = next_token(self.tokenizer, request.history)
        request.history.append(token)
        request.turn_tokens += 1
        request.output_tokens += 1
        if request.turn_tokens == 1:
            request.text = TextStream(self.tokenizer, params.stop, params.min_tokens)
        text, reason, why = request.text.push((token,)), None, None
        if request.text.stopped_by is not None:
            reason, why = FinishReason.STOP, request.text.stopped_by
        elif token in params.stop_token_ids and request.turn_tokens > params.min_tokens:
            reason, why = FinishReason.STOP, token
        elif params.max_tokens is not None and request.turn_tokens >= params.max_tokens:
            reason = FinishReason.LENGTH
        logprobs = ()
        if params.logprobs is not None:
            top = ((token, -0.1), (1, -2.5))[: params.logprobs]
            logprobs = (TokenLogprobs(token, -0.1, top),)
        if reason is not None and request.input_open:
            self._say(request, (token,), FinishReason.TURN, why, logprobs, text)
            request.parked = True
            self._next_turn(request)
        elif reason is not None:
            self._finish(request, reason, (token,), why, logprobs, text)
        else:
            self._say(request, (token,), None, None, logprobs, text)

    def _next_turn(self, request):
        if request.parked and request.chunks:
            tokens, params = request.chunks.pop(0)
            request.history.extend(tokens)
            request.prompt += len(tokens)
            request.params = params or request.params
            request.turn += 1
            request.turn_tokens = 0
            request.parked = False
            self._moved.notify_all()

    def _say(self, request, tokens, reason, why=None, logprobs=(), text=""):
        if reason is not None and request.text is not None:
            text += request.text.finish()
        request.on_output(
            RequestOutput(
                request.request_id,
                tokens,
                text,
                finish_reason=reason,
                stop_reason=why,
                prompt_tokens=request.prompt,
                output_tokens=request.output_tokens,
                cached_tokens=3,
                logprobs=logprobs,
                turn=request.turn,
            )
        )

    def _finish(self, request, reason, tokens=(), why=None, logprobs=(), text=""):
        del self.requests[request.request_id]
        self._say(request, tokens, reason, why, logprobs, text)
        self._moved.notify_all()
