"""32 clients and an operator at once: no 500, no wrong or lost token, all free at the end."""

import asyncio
import sys
from collections import Counter

import pytest

from .fake_device import corruptions, fake_engine
from .load import Load
from .serving import Served, Servers
from .texts import byte_tokenizer

Capture = pytest.CaptureFixture[str]


def run(served: Served, seconds: float, seed: int, capsys: Capture) -> Counter[str]:
    figures = asyncio.run(Load(served.url, seconds, seed).run())
    with capsys.disabled():
        sys.stdout.write(f"\n{figures}\n")
    assert figures.faults == []
    for kind in ("stream", "answer", "turn", "left", "reset", "pause", "sleep", "abort of all"):
        assert any(done.startswith(kind) for done in figures.done), kind
    with served.client() as client:
        client.post("/abort_requests")  # parked sessions
        for _ in range(2000):
            if client.get("/debug/holds").json() == {"holds": []}:
                break
        stats = client.get("/debug/stats").json()
        assert stats["blocks_free"] == stats["blocks_total"]
        assert stats["waiting"] == stats["running"] == stats["blocked"] == 0
        assert stats["parked_sessions"] == 0
        assert client.get("/load").json() == {"server_load": 0, "queued": 0}
        assert client.get("/health").status_code == 200
        assert 'status="500"' not in client.get("/metrics").text
    assert corruptions(served.engine) == []
    return figures.done


@pytest.fixture
def busy():
    """Too few blocks for all, two steps in flight, loads that take their time."""
    tokenizer = byte_tokenizer()
    engine = fake_engine(
        tokenizer,
        num_blocks=96,
        max_num_seqs=16,
        max_model_len=512,
        steps_in_flight=2,
        tier_bytes=1 << 19,
        load_delay=0.02,
    )
    servers = Servers()
    yield servers.around(engine, tokenizer, dev=True)
    servers.end()


def test_ten_seconds_of_load_lose_nothing(busy, capsys):
    run(busy, 10, seed=1, capsys=capsys)


@pytest.mark.long
def test_two_minutes_of_load_lose_nothing(busy, capsys):
    done = run(busy, 120, seed=2, capsys=capsys)
    assert all(done[kind] > 0 for kind in ("reset", "pause", "sleep", "wake")), done
