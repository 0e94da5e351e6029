"""A script of events as a picture: who tells whom what, from top to bottom, as one SVG element.

Nothing has to be installed or fetched to see it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Message:
    """One arrow, with what changed written under it."""

    sender: str
    receiver: str
    label: str
    note: str = ""


#: Pixels.
LEFT, LANE, HEAD, LINE, LETTER = 70, 150, 34, 30, 6.7

#: Who sends an event, by its first word; anything else is the scheduler's.
SENDERS = {
    "client": ("add", "abort", "chunk", "close_input", "reset", "reset,"),
    "operator": (
        "pause", "resume", "sleep", "wake", "weights_changed", "shutdown", "reset_pending",
        "reset_decided",
    ),
    "connector": ("begin", "land", "fail", "fence", "give_up", "worker_done"),
    "clock": ("deadline", "lease_over"),
    "device": ("step_processed", "publish", "output", "stop"),
}  # fmt: skip
SCHEDULER = "engine"
#: The order in which parties stand, whoever else there is behind them.
ORDER = ("client", "operator", "clock", SCHEDULER, "device", "connector")


def message(words: str) -> Message:
    """A step of a script of `kvproof check`: "admit r0: 0 hits, 1 fresh" is an arrow to r0."""
    first = words.split(" ")[0].rstrip(":,")
    sender = next((party for party, names in SENDERS.items() if first in names), SCHEDULER)
    subject = re.search(r"\b([rt]\d+)\b", words)
    return Message(sender, subject[1] if subject else SCHEDULER, words)


def svg(messages: Sequence[Message], broken: str, title: str) -> str:
    """The picture. `broken` is what no longer holds after the last message, `title` for a reader
    who cannot see it.
    """
    present = {each for one in messages for each in (one.sender, one.receiver)} | {SCHEDULER}
    parties = [each for each in ORDER if each in present] + sorted(present - set(ORDER))
    x = {party: LEFT + LANE * number for number, party in enumerate(parties)}
    parts: list[str] = []
    y = HEAD + 14
    for number, each in enumerate(messages):
        last = number == len(messages) - 1
        parts += _arrow(number + 1, each, x, y + LINE / 2, last)
        y += LINE + (14 if each.note else 0)
    lines = _wrapped(broken, 84)
    box = 12 + 16 * len(lines)
    # As wide as its longest line, wherever that begins.
    ends = [min(x[m.sender], x[m.receiver]) + LETTER * (len(m.label) + 6) for m in messages]
    width = max([LEFT + LANE * len(parties), *ends, LETTER * max(map(len, lines)) + 60])
    height = y + box + 26
    frame = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="sequence" role="img" '
        f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width:g}" height="{height:g}" fill="white"/>',
    ]
    for party in parties:
        frame += [
            f'<line x1="{x[party]}" x2="{x[party]}" y1="{HEAD}" y2="{y + 6:g}" stroke="#bbb"/>',
            f'<rect x="{x[party] - 46}" y="8" width="92" height="24" rx="4" fill="#f0f4f8" '
            'stroke="#8aa"/>',
            f'<text x="{x[party]}" y="24" text-anchor="middle">{escape(party)}</text>',
        ]
    frame += parts
    frame.append(
        f'<rect x="20" y="{y + 8:g}" width="{width - 40:g}" height="{box}" rx="4" fill="#fff0f0" '
        'stroke="#d73a49"/>'
    )
    for number, line in enumerate(lines):
        at = y + 26 + 16 * number
        frame.append(f'<text x="32" y="{at:g}" fill="#86181d">{escape(line)}</text>')
    return "\n".join([*frame, "</svg>"])


def _arrow(number: int, each: Message, x: dict[str, int], y: float, last: bool) -> list[str]:
    colour = "#d73a49" if last else "#0366d6"
    start, end = x[each.sender], x[each.receiver]
    label = f"{number}. {each.label}"
    if start == end:
        line = (
            f'<path d="M {start} {y:g} h 28 v 10 h -22" fill="none" stroke="{colour}"/>'
            f'<path d="M {start + 2} {y + 10:g} l 8 -4 l 0 8 z" fill="{colour}"/>'
        )
        words = _text(start + 36, y + 9, label)
    else:
        side = 1 if end > start else -1
        line = (
            f'<line x1="{start}" x2="{end}" y1="{y:g}" y2="{y:g}" stroke="{colour}"/>'
            f'<path d="M {end} {y:g} l {-8 * side} -4 l 0 8 z" fill="{colour}"/>'
        )
        words = _text(min(start, end) + 6, y - 6, label)
    parts = [line, words]
    if each.note:
        parts.append(_text(min(start, end) + 6, y + 13, each.note, "#666"))
    return parts


def _text(x: float, y: float, words: str, colour: str = "#111") -> str:
    """Words with a white edge, so that a lane's line does not run through them."""
    return (
        f'<text x="{x:g}" y="{y:g}" fill="{colour}" stroke="white" stroke-width="4" '
        f'paint-order="stroke">{escape(words)}</text>'
    )


def _wrapped(words: str, width: int) -> list[str]:
    lines = [""]
    for word in words.split():
        if lines[-1] and len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
