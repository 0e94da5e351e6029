"""The demo as a user runs it: the real model, in processes of its own."""

import json
import subprocess
import sys

import pytest
from kvproof.specs.demo.scenario import PARTS
from kvproof.specs.demo.server import START


@pytest.mark.long
def test_every_row_holds_on_the_served_model():
    command = [sys.executable, "-c", START, "demo", "--no-proofs", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    trials = report["trials"]
    assert len(trials) == sum(len(part.trials) for part in PARTS)
    assert all(trial["holds"] for trial in trials)
    assert report["trace"]["departure"] is None
    assert report["trace"]["matched"] > 1000
    assert all(trial["loaded_bytes"] > 0 for trial in trials if trial["trial"] != "session")
