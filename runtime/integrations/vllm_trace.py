"""With `KVPROOF_TRACE=FILE` the shadow follows every step, and writes each event as a trace line.

The records' counters are then moved by the declaration's own events alone, never read from vLLM,
so that `kvproof conform` can replay the file.
"""

from __future__ import annotations

import time
from typing import Any

from ...statemachine import states
from ...statemachine.engine import ENGINE
from ...statemachine.facts import Ask, EngineAsk, RequestFacts
from ..outcome import Fired
from ..trace_writer import TraceWriter
from .vllm_report import Report
from .vllm_shadow import Shadow


class TracedShadow(Shadow):
    """A shadow whose records are exact at every step, and a trace of them."""

    def __init__(self, scheduler: Any, report: Report, path: str) -> None:
        super().__init__(scheduler, report)
        self._writer = TraceWriter(path, time.monotonic)
        self._sampled: dict[str, Ask] = {}  # of sessions, in the step that is being processed

    def _read(self, record: RequestFacts, request: Any) -> None:
        """The counters are moved by events."""

    def _launched(self, output: Any) -> None:
        self._engine(states.LAUNCH_STEP)
        step = self.engine.launched
        for name, tokens in output.num_scheduled_tokens.items():
            record = self.records[name]
            more = len(self._tables[name]) - record.covered
            if more > 0:
                ask = Ask(blocks=more, fresh=more, free=self._free() + more)
                self._send(record, states.GROW, name, ask)
            self._send(record, states.LAUNCH, name, Ask(tokens=tokens, step=step))

    def processed(self, output: Any, result: Any) -> None:
        """A step's results have come: what it wrote is published, what it sampled is delivered."""
        if not output.total_num_scheduled_tokens:
            return
        step = self.engine.processed + 1
        self._engine(states.STEP_PROCESSED, step=step)
        for name, tokens in output.num_scheduled_tokens.items():
            record = self.records.get(name)
            if record is None:
                continue  # it has ended meanwhile
            blocks = (record.written + tokens) // self.engine.block_size
            self._send(record, states.PUBLISH, name, Ask(step=step, tokens=tokens, blocks=blocks))
            sampled = result.sampled_token_ids[result.req_id_to_index[name]]
            if sampled:
                ask = Ask(step=step, tokens=len(sampled))
                if record.resumable:
                    self._sampled[name] = ask
                else:
                    self._send(record, states.OUTPUT, name, ask)

    def stopping(self, request: Any) -> Ask:
        """A turn ends. If another one can come, vLLM drops the token that was sampled last."""
        queue, name = request.streaming_queue, request.request_id
        goes_on = request.resumable and not (queue and queue[0] is None)
        if goes_on and name in self._sampled:
            self._sampled[name].tokens -= 1
        self._deliver(name)
        return super().stopping(request)

    def updated(self) -> None:
        """vLLM has processed the step: who has not stopped keeps what was sampled."""
        for name in list(self._sampled):
            self._deliver(name)

    def _deliver(self, name: str) -> None:
        ask, record = self._sampled.pop(name, None), self.records.get(name)
        if ask is not None and ask.tokens and record is not None:
            self._send(record, states.OUTPUT, name, ask)

    def close_trace(self) -> None:
        """The trace is complete."""
        self._writer.close()

    def forget(self, request_id: str) -> None:
        """vLLM has forgotten a request; the declaration does once its last step is processed."""
        record = self.records.get(request_id)
        if record is not None:
            self._send(record, states.FORGET, request_id, Ask(idle=True))
        super().forget(request_id)

    def _send(self, record: RequestFacts, event: int, name: str, ask: Ask) -> int:
        facts, engine, source = record.as_dict(), self.engine.as_dict(), record.state
        code = super()._send(record, event, name, ask)
        asked, dest = ask.as_dict(), record.state
        self._writer(Fired("request", name, event, facts, engine, asked, code, source, dest))
        return code

    def _engine(self, event: int, **told: int) -> None:
        ask = EngineAsk(**told)
        facts, source = self.engine.as_dict(), self.engine.mode
        code = ENGINE.fire(event, self.engine, ask)
        asked, dest = ask.as_dict(), self.engine.mode
        self._writer(Fired("engine", "", event, facts, {}, asked, code, source, dest))
