"""From logits to tokens, for all rows of a step at once.

What is drawn for a request is a function of its parameters, its logits and one number in [0, 1)
that depends on its seed and the position only: not on its neighbours in the batch, not on how
often it was preempted and computed again.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ..sampling_params import SamplingParams

Int64Array = npt.NDArray[np.int64]
# Tokens that top_p looks at before it sorts a whole row.
_CANDIDATES = 512

_ROW = np.dtype(
    [
        ("temperature", np.float32),
        ("top_k", np.int64),  # 0 keeps every token
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("penalty", np.float32),
        ("seed", np.uint64),
        ("logprobs", np.int64),  # -1 asks for none
        ("first_stop", np.int64),  # length of the sequence from which stop tokens may come
    ]
)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The model's own log-probabilities beside one sampled token (before any penalty)."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # the likeliest tokens, best first


@dataclass(frozen=True, slots=True)
class Sampled:
    """The tokens of a step: int64 [m], and what was asked for beside them."""

    tokens: Int64Array
    finite: npt.NDArray[np.bool_]  # [m] False where the logits were no numbers
    logprobs: dict[int, TokenLogprobs]  # index in the step -> its log-probabilities


def uniforms(seeds: npt.NDArray[np.uint64], positions: Int64Array) -> npt.NDArray[np.float64]:
    """One number in [0, 1) for each (seed, position): SplitMix64 of the two, 53 bits of it."""
    mixed = _splitmix(_splitmix(seeds) ^ positions.astype(np.uint64))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _splitmix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


class Sampler:
    """The sampling parameters of every row as columns, and the drawing itself."""

    def __init__(self, vocab_size: int, eos_token_ids: Sequence[int], device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._eos_token_ids = tuple(eos_token_ids)
        self._device = device
        self._seen: torch.Tensor | None = None  # bool [rows, vocab], for penalties
        self._rows = np.zeros(0, dtype=_ROW)
        self._stops: dict[int, Int64Array] = {}  # row -> tokens that min_tokens forbids

    def bind(self, row: int, params: SamplingParams, tokens: npt.ArrayLike, outputs: int) -> None:
        """A row's new tenant; `outputs` of its tokens were sampled already."""
        if row >= len(self._rows):
            self._grow(max(row + 1, 2 * len(self._rows)))
        history = np.asarray(tokens, dtype=np.int64)
        self._rows["temperature"][row] = params.temperature
        self._rows["top_k"][row] = min(max(params.top_k, 0), self._vocab_size)
        self._rows["top_p"][row] = params.top_p
        self._rows["min_p"][row] = params.min_p
        self._rows["penalty"][row] = params.repetition_penalty
        seed = secrets.randbits(64) if params.seed is None else params.seed % (1 << 64)
        self._rows["seed"][row] = seed
        self._rows["logprobs"][row] = -1 if params.logprobs is None else params.logprobs
        self._rows["first_stop"][row] = len(history) - outputs + params.min_tokens
        ends = params.stop_token_ids + (() if params.ignore_eos else self._eos_token_ids)
        self._stops[row] = np.array([t for t in ends if t < self._vocab_size], dtype=np.int64)
        if params.repetition_penalty != 1.0:
            seen = self._seen_rows()
            seen[row] = False
            seen[row, torch.from_numpy(history).to(self._device)] = True

    def unbind(self, row: int) -> None:
        """The row is nobody's."""
        self._stops.pop(row, None)

    def saw(self, rows: Int64Array, tokens: Int64Array) -> None:
        """These tokens ([t], of rows [t]) are part of their sequences now."""
        penalised = self._rows["penalty"][rows] != 1.0
        if penalised.any():
            where = torch.from_numpy(rows[penalised]), torch.from_numpy(tokens[penalised])
            self._seen_rows()[where] = True

    @torch.inference_mode()
    def sample(self, logits: torch.Tensor, rows: Int64Array, lengths: Int64Array) -> Sampled:
        """One token for each row.

        logits: float32 [m, vocab], changed in place; lengths: how many tokens each row's sequence
        has before the new one.
        """
        wants = np.flatnonzero(self._rows["logprobs"][rows] >= 0)
        raw = logits[torch.from_numpy(wants)] if wants.size else None
        self._forbid_early_stops(logits, rows, lengths)
        self._penalise(logits, rows)
        peak, best = logits.max(dim=-1)
        finite = torch.isfinite(peak).cpu().numpy()
        tokens = best.cpu().numpy()
        drawn = np.flatnonzero((self._rows["temperature"][rows] > 0.0) & finite)
        if drawn.size:
            index = torch.from_numpy(drawn).to(self._device)
            scores = logits[index] - peak[index, None]
            tokens[drawn] = self._draw(scores, rows[drawn], lengths[drawn])
        logprobs = {} if raw is None else self._report(raw, wants, rows[wants], tokens[wants])
        return Sampled(tokens, finite, logprobs)

    def _forbid_early_stops(
        self, logits: torch.Tensor, rows: Int64Array, lengths: Int64Array
    ) -> None:
        for index in np.flatnonzero(lengths < self._rows["first_stop"][rows]).tolist():
            stops = torch.from_numpy(self._stops[int(rows[index])]).to(self._device)
            logits[index, stops] = float("-inf")

    def _penalise(self, logits: torch.Tensor, rows: Int64Array) -> None:
        penalised = np.flatnonzero(self._rows["penalty"][rows] != 1.0)
        if not penalised.size:
            return
        index = torch.from_numpy(penalised).to(self._device)
        chosen = logits[index]
        penalty = self._column("penalty", rows[penalised])
        seen = self._seen_rows()[torch.from_numpy(rows[penalised]).to(self._device)]
        weaker = torch.where(chosen > 0, chosen / penalty, chosen * penalty)
        logits[index] = torch.where(seen, weaker, chosen)

    def _draw(self, scores: torch.Tensor, rows: Int64Array, lengths: Int64Array) -> Int64Array:
        """Inverse of the cumulated distribution, tokens in the vocabulary's order."""
        scores /= self._column("temperature", rows)
        floor = torch.log(self._column("min_p", rows))
        cut = np.flatnonzero((self._rows["top_k"][rows] > 0) | (self._rows["top_p"][rows] < 1.0))
        if cut.size:
            index = torch.from_numpy(cut).to(self._device)
            floor[index] = self._cut(scores[index], floor[index], rows[cut])
        scores.masked_fill_(scores < floor, float("-inf"))
        cumulated = scores.double().exp_().cumsum(dim=-1)
        total = cumulated[:, -1:]
        chance = torch.from_numpy(uniforms(self._rows["seed"][rows], lengths)).to(self._device)
        target = torch.minimum(chance[:, None] * total, torch.nextafter(total, total * 0.0))
        picked = torch.searchsorted(cumulated, target, right=True)
        return picked[:, 0].cpu().numpy()

    def _cut(self, scores: torch.Tensor, floor: torch.Tensor, rows: Int64Array) -> torch.Tensor:
        """The lowest score that top_k and then top_p keep, [c, 1]; scores [c, vocab] peak at 0."""
        top_k, top_p = self._rows["top_k"][rows], self._rows["top_p"][rows]
        width = min(max(int(top_k.max()), _CANDIDATES), self._vocab_size)
        values = scores.topk(width, dim=-1).values
        limited = torch.from_numpy(top_k > 0).to(self._device)[:, None]
        last = torch.from_numpy(np.maximum(top_k, 1) - 1).to(self._device)[:, None]
        floor = torch.where(limited, torch.maximum(floor, values.gather(1, last)), floor)
        mass = scores.exp().masked_fill_(scores < floor, 0.0).sum(dim=-1, keepdim=True)
        wanted = self._column("top_p", rows) * mass
        enough = values.exp().cumsum(dim=-1) >= wanted
        partial = torch.from_numpy(top_p < 1.0).to(self._device)[:, None]
        nucleus = values.gather(1, enough.long().argmax(dim=-1, keepdim=True))
        floor = torch.where(enough[:, -1:] & partial, torch.maximum(floor, nucleus), floor)
        # The candidates were too few for these rows: sort them whole.
        wide = (~enough[:, -1:] & partial & ~limited)[:, 0].nonzero()[:, 0]
        if wide.numel():
            ordered = scores[wide].sort(dim=-1, descending=True).values
            reached = ordered.exp().cumsum(dim=-1) >= wanted[wide]
            nucleus = ordered.gather(1, reached.long().argmax(dim=-1, keepdim=True))
            found = torch.maximum(floor[wide], nucleus)
            floor[wide] = torch.where(reached[:, -1:], found, floor[wide])
        return floor

    def _report(
        self, raw: torch.Tensor, indices: Int64Array, rows: Int64Array, tokens: Int64Array
    ) -> dict[int, TokenLogprobs]:
        logprobs = raw.log_softmax(dim=-1)
        chosen = logprobs.gather(1, torch.from_numpy(tokens).to(self._device)[:, None])[:, 0]
        widest = int(self._rows["logprobs"][rows].max())
        values, ids = logprobs.topk(max(widest, 1), dim=-1)
        reports = {}
        for at, index in enumerate(indices.tolist()):
            count = int(self._rows["logprobs"][rows[at]])
            top = zip(ids[at, :count].tolist(), values[at, :count].tolist(), strict=True)
            reports[index] = TokenLogprobs(int(tokens[at]), float(chosen[at]), tuple(top))
        return reports

    def _column(self, name: str, rows: Int64Array) -> torch.Tensor:
        return torch.from_numpy(self._rows[name][rows]).to(self._device)[:, None]

    def _seen_rows(self) -> torch.Tensor:
        rows = len(self._rows)
        if self._seen is None or len(self._seen) < rows:
            grown = torch.zeros((rows, self._vocab_size), dtype=torch.bool, device=self._device)
            if self._seen is not None:
                grown[: len(self._seen)] = self._seen
            self._seen = grown
        return self._seen

    def _grow(self, rows: int) -> None:
        grown = np.zeros(rows, dtype=_ROW)
        grown["penalty"] = 1.0
        grown[: len(self._rows)] = self._rows
        self._rows = grown
