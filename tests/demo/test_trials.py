"""Each trial holds on the real engine, and fails for each lie that it is meant to notice."""

import itertools
import json

import pytest
from kvproof.specs.demo import trials
from kvproof.specs.demo.client import Answer, Api
from kvproof.specs.demo.rows import Row
from kvproof.specs.demo.sibling import sibling
from kvproof.specs.demo.trials import control, flagged, waiting

from ..runtime.server.fake_device import corruptions


@pytest.mark.parametrize("trial", [flagged, control, sibling, waiting])
def test_a_trial_holds(bench, served, trial):
    row = trial(bench, trial.__name__)
    assert row.failed == []
    assert row.holds
    assert corruptions(served.engine) == []


def test_the_first_trials_prompts_were_evicted_and_not_reset(bench, served):
    stats = Api(served.url).stats()
    assert stats["blocks_total"] == 320
    needed = sum(len(prompt.tokens) + 64 for prompt in bench.prompts) / 16
    assert needed >= stats["blocks_total"] + 2 * 32  # those of the first trial


def failing(row: Row) -> str:
    assert not row.holds
    return "; ".join(row.failed)


class Succeeds(Api):
    """A reset that says true whatever is in flight."""

    def reset(self, forced, wait=0.0):
        return Answer(200, {"success": True, "tiers": ["device"]})


class NamesNobody(Api):
    """A refusal without holders."""

    def reset(self, forced, wait=0.0):
        answer = super().reset(forced, wait)
        return Answer(answer.status, {**answer.body, "holders": []})


class NamesAnotherLoad(Api):
    """A refusal that names a load which nobody else knows of."""

    def reset(self, forced, wait=0.0):
        answer = super().reset(forced, wait)
        holders = answer.body.get("holders", [])
        for holder in holders:
            holder["owner"] = "9999"
        return answer


class Is500(Api):
    """A refusal that is answered as the engines of the public reports did."""

    def reset(self, forced, wait=0.0):
        answer = super().reset(forced, wait)
        return answer if answer.body.get("success") else Answer(500, answer.body)


class IsFinished(Api):
    """A reset that is true only because every request has ended."""

    done = False

    def reset(self, forced, wait=0.0):
        answer = super().reset(forced, wait)
        self.done = answer.body["success"]
        return answer

    def state_of(self, request_id):
        return "FINISHED_STOPPED" if self.done else super().state_of(request_id)


class IsRunning(Api):
    """An engine whose requests never end."""

    def state_of(self, request_id):
        return super().state_of(request_id).replace("FINISHED_LENGTH_CAPPED", "RUNNING")


class LoadsNothing(Api):
    """An engine that recomputed instead of loading."""

    def stats(self):
        return super().stats() | {"tier_loaded_bytes": 7}


class WrongToken(Api):
    """A stream with one token that an undisturbed run does not have."""

    def lines(self, path, body):
        for number, line in enumerate(super().lines(path, body)):
            if number == 10 and line.startswith(b"data: {"):
                event = json.loads(line[6:])
                ids = event["choices"][0]["token_ids"]
                event["choices"][0]["token_ids"] = [(token + 1) % 256 for token in ids]
                line = b"data: " + json.dumps(event).encode()
            yield line


class LosesATail(Api):
    """A stream that breaks off."""

    def lines(self, path, body):
        return itertools.islice(super().lines(path, body), 20)


class Unhealthy(Api):
    """A server that is unwell afterwards."""

    def call(self, method, path, body=None, **query):
        answer = super().call(method, path, body, **query)
        return Answer(503, {}) if path == "/health" else answer


class WrongAfterwards(Api):
    """A generation afterwards that is not what it was before."""

    def call(self, method, path, body=None, **query):
        answer = super().call(method, path, body, **query)
        if path == "/v1/completions":
            answer.body["choices"][0]["token_ids"].reverse()
        return answer


@pytest.mark.parametrize(
    ("trial", "lies", "noticed"),
    [
        (flagged, Succeeds, "refused while the load is in flight"),
        (flagged, NamesNobody, "names its holders"),
        (flagged, NamesAnotherLoad, "the LOAD it names is in /debug/holds"),
        (flagged, Is500, "a refusal is 200"),
        (flagged, IsFinished, "true while both streams owe tokens"),
        (flagged, LoadsNothing, "bytes were loaded from the host"),
        (flagged, WrongToken, "tokens of an undisturbed run (seen: token"),
        (flagged, LosesATail, "tokens of an undisturbed run"),
        (flagged, Unhealthy, "healthy afterwards"),
        (flagged, WrongAfterwards, "generates afterwards"),
        (control, Succeeds, "true only once the streams are done"),
        (control, Is500, "a refusal is 200"),
        (control, IsRunning, "true only once the streams are done"),
        (control, LoadsNothing, "bytes were loaded from the host"),
        (waiting, WrongToken, "tokens of an undisturbed run"),
        (sibling, Succeeds, "without the flag it refuses"),
        (sibling, Unhealthy, "healthy afterwards"),
    ],
)
def test_a_trial_fails_when_what_it_checks_is_false(lying, trial, lies, noticed):
    assert noticed in failing(trial(lying(lies), "lied to"))


def test_a_load_that_never_comes_fails_the_trial(lying, monkeypatch):
    class NoLoads(Api):
        def holds(self):
            return [one for one in super().holds() if one["kind"] != "LOAD"]

    monkeypatch.setattr(trials, "ATTEMPTS", 2)
    assert "before a load has ended, in 2 attempts" in failing(flagged(lying(NoLoads), "no loads"))


@pytest.mark.parametrize("trial", [flagged, pytest.param(control, marks=pytest.mark.long)])
def test_a_trial_whose_load_has_ended_too_soon_is_run_again(lying, trial):
    class ComesTooLate(Api):
        """The first reset finds no load: it has ended, as may happen on a busy machine."""

        resets = 0

        def reset(self, forced, wait=0.0):
            self.resets += 1
            return super().reset(forced, wait)

        def holds(self):
            late = self.resets == 1
            return [one for one in super().holds() if not (late and one["kind"] == "LOAD")]

    assert trial(lying(ComesTooLate), "comes too late").holds


def test_a_trial_that_always_comes_too_late_does_not_hold(lying, monkeypatch):
    class ComesTooLate(Api):
        after = False

        def reset(self, forced, wait=0.0):
            self.after = True
            return super().reset(forced, wait)

        def holds(self):
            hidden = "LOAD" if self.after else ""
            self.after = False
            return [one for one in super().holds() if one["kind"] != hidden]

    monkeypatch.setattr(trials, "ATTEMPTS", 2)
    assert "before a load has ended, in 2 attempts" in failing(flagged(lying(ComesTooLate), "late"))


def test_a_row_without_a_check_does_not_hold():
    row = Row("empty")
    assert not row.holds
    row.check("something", True)
    assert row.holds
    row.check("something else", False, "this")
    assert not row.holds
    assert row.failed == ["something else (seen: this)"]
