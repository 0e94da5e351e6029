"""What the server asks of an engine. Every method may be called from any thread.

Those that begin something give a future: cancelling it gives the call up where that is possible.

`runtime.engine.Engine` is one; the server's tests bring a smaller one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Protocol

from ..api import CallResult, EngineStats, Holder, RequestInfo, RequestOutput, ResetResult
from ..protocols import Int32Array
from ..sampling_params import SamplingParams

OnOutput = Callable[[RequestOutput], None]


class ServedEngine(Protocol):
    """The engine's public methods, as far as HTTP needs them."""

    def add_request(
        self,
        request_id: str,
        tokens: Int32Array | Sequence[int],
        params: SamplingParams,
        *,
        on_output: OnOutput,
        priority: int = 0,
        resumable: bool = False,
        salt: bytes = b"",
    ) -> None: ...

    def add_chunk(
        self,
        request_id: str,
        tokens: Int32Array | Sequence[int],
        params: SamplingParams | None = None,
    ) -> None: ...

    def close_input(self, request_id: str) -> bool: ...

    def abort(self, request_id: str) -> bool: ...

    def begin_reset(
        self,
        reset_running_requests: bool = False,
        reset_connector: bool = False,
        wait: float = 0.0,
    ) -> Future[ResetResult]: ...

    def begin_pause(self, mode: str = "abort", clear_cache: bool = False) -> Future[CallResult]: ...

    def resume(self) -> CallResult: ...

    def begin_sleep(self, level: int = 1, mode: str = "abort") -> Future[CallResult]: ...

    def wake(self, tags: Iterable[str] = ("weights", "cache")) -> CallResult: ...

    def is_paused(self) -> bool: ...

    def is_sleeping(self) -> bool: ...

    def holds(self) -> list[Holder]: ...

    def stats(self) -> EngineStats: ...

    def request_info(self, request_id: str) -> RequestInfo | None: ...

    def healthy(self) -> tuple[bool, str]: ...

    def shutdown(self, drain: bool = True, timeout: float = 30.0) -> None: ...
