"""Prometheus metrics: vLLM's names where the meaning is the same, kvproof's own for the rest.

Labels are kinds, names of signals, routes and statuses; never an id, a key or a text.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..api import EngineStats
from .contract import ServedEngine

_TIMES = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)


class Metrics:
    """One server's registry: what the server measures, and the engine's counters at each scrape."""

    def __init__(self, engine: ServedEngine, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self._model = model_name
        labels = ("model_name",)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            made = Histogram(name, text, labels, buckets=buckets, registry=self.registry)
            return made.labels(model_name)

        self.first_token = histogram(
            "vllm:time_to_first_token_seconds", "Time to the first token, seconds.", _TIMES
        )
        self.between_tokens = histogram(
            "vllm:inter_token_latency_seconds", "Time between two tokens, seconds.", _TIMES
        )
        self.latency = histogram(
            "vllm:e2e_request_latency_seconds", "Time from a request to its end, seconds.", _TIMES
        )
        self.prompt_tokens = histogram(
            "vllm:request_prompt_tokens", "Prompt tokens of a request.", _TOKENS
        )
        self.output_tokens = histogram(
            "vllm:request_generation_tokens", "Generated tokens of a request.", _TOKENS
        )
        self.responses = Counter(
            "kvproof:http_responses",
            "HTTP answers by route and status.",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self.registry.register(_EngineCollector(engine, model_name))

    def timer(self) -> RequestTimer:
        """A clock for one request that starts now."""
        return RequestTimer(self)

    def text(self) -> bytes:
        """The exposition format. Blocks until the engine has answered: call it off the loop."""
        return generate_latest(self.registry)


class RequestTimer:
    """Measures one request as its client sees it."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._started = time.monotonic()
        self._last: float | None = None

    def tokens(self, count: int) -> None:
        """`count` tokens have arrived together."""
        if count == 0:
            return
        now = time.monotonic()
        if self._last is None:
            self._metrics.first_token.observe(now - self._started)
        else:
            self._metrics.between_tokens.observe((now - self._last) / count)
        self._last = now

    def finished(self, reason: str, prompt: int, output: int) -> None:
        """It ended, whatever the reason."""
        self._metrics.latency.observe(time.monotonic() - self._started)
        self._metrics.prompt_tokens.observe(prompt)
        self._metrics.output_tokens.observe(output)


class CountResponses:
    """ASGI layer: counts answers. A path that is no route is counted under one name."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the call on and look at the status of its answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def looking(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "other")
                method = scope["method"] if route != "other" else "other"
                self._metrics.responses.labels(method, route, str(message["status"])).inc()
            await send(message)

        await self._app(scope, receive, looking)


class _EngineCollector(Collector):
    """The engine's counters, read when somebody looks."""

    def __init__(self, engine: ServedEngine, model_name: str) -> None:
        self._engine = engine
        self._model = model_name

    def describe(self) -> Iterator[Metric]:
        """Nothing: registering must not ask the engine."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """One consistent picture."""
        stats = self._engine.stats()
        yield from self._vllm(stats)
        yield from _own(stats)

    def _vllm(self, stats: EngineStats) -> Iterator[Metric]:
        used = stats.blocks_total - stats.blocks_free
        gauges = (
            ("num_requests_running", "Requests that run.", stats.running),
            ("num_requests_waiting", "Requests that wait.", stats.waiting + stats.blocked),
            (
                "kv_cache_usage_perc",
                "Part of the blocks in use; 1 is all.",
                used / (stats.blocks_total or 1),
            ),
        )
        counters = (
            ("num_preemptions", "Preemptions.", stats.preemptions),
            ("prompt_tokens", "Prompt tokens processed.", stats.prompt_tokens),
            ("generation_tokens", "Tokens generated.", stats.generation_tokens),
            ("prefix_cache_queries", "Prompt tokens looked up.", stats.prefix_queries),
            ("prefix_cache_hits", "Prompt tokens found.", stats.prefix_hits),
        )
        for name, text, value in gauges:
            gauge = GaugeMetricFamily(f"vllm:{name}", text, labels=("model_name",))
            gauge.add_metric((self._model,), value)
            yield gauge
        for name, text, value in counters:
            counter = CounterMetricFamily(f"vllm:{name}", text, labels=("model_name",))
            counter.add_metric((self._model,), value)
            yield counter
        ended = CounterMetricFamily(
            "vllm:request_success",
            "Requests by their end.",
            labels=("model_name", "finished_reason"),
        )
        for reason, count in stats.finished.items():
            ended.add_metric((self._model, reason), count)
        yield ended


def _own(stats: EngineStats) -> Iterator[Metric]:
    gauges = (
        ("blocks", "Device blocks.", stats.blocks_total),
        ("blocks_free", "Device blocks that nobody holds.", stats.blocks_free),
        ("blocks_cached", "Device blocks that can be a hit.", stats.blocks_cached),
        ("blocks_quarantined", "Blocks in quarantine.", stats.blocks_quarantined),
        ("parked_sessions", "Sessions between two turns.", stats.parked_sessions),
        ("stuck_seconds", "How long work has existed and not moved.", stats.stuck_for),
    )
    counters = (
        ("watchdog_trips", "Times that work existed and did not move.", stats.watchdog_trips),
        ("tier_loaded_bytes", "Bytes loaded from the host tier.", stats.tier_loaded_bytes),
        ("tier_stored_bytes", "Bytes stored to the host tier.", stats.tier_stored_bytes),
        ("steps_launched", "Device steps launched.", stats.steps_launched),
        ("steps_processed", "Device steps processed.", stats.steps_processed),
    )
    for name, text, value in gauges:
        yield GaugeMetricFamily(f"kvproof:{name}", text, value=value)
    for name, text, value in counters:
        yield CounterMetricFamily(f"kvproof:{name}", text, value=value)
    holds = GaugeMetricFamily("kvproof:holds", "Holds by kind.", labels=("kind",))
    for kind, count in stats.holds.items():
        holds.add_metric((kind,), count)
    yield holds
    mode = GaugeMetricFamily("kvproof:mode", "The engine's mode is this one.", labels=("mode",))
    mode.add_metric((stats.mode,), 1)
    yield mode
    refused = CounterMetricFamily(
        "kvproof:refused_resets", "Refused resets by kind of holder.", labels=("holder_kind",)
    )
    for kind, count in stats.refused_resets.items():
        refused.add_metric((kind,), count)
    yield refused
    ignored = CounterMetricFamily(
        "kvproof:ignored_signals", "Late or duplicate signals by name.", labels=("signal",)
    )
    for name, count in stats.ignored_signals.items():
        ignored.add_metric((name,), count)
    yield ignored
