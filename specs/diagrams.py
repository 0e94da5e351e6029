"""Diagrams of the machines: Mermaid and DOT as graphs, SVG as a chart that needs no layout.

A graph shows the events that change the state, grouped where a whole group of states shares them.
The chart has one column for each state and one line for each row that goes: dots where it may
come from, an arrow where it leads; so it also shows what changes facts only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from ..statemachine.answers import GO
from .listing import GROUPS, MACHINES, guards_in_words, rows


@dataclass(frozen=True, slots=True)
class Edge:
    """One arrow: from a state, or from a group of states, to a state."""

    source: str
    dest: str
    events: tuple[str, ...]


def edges(machine: str) -> list[Edge]:
    """The arrows of a machine's graph, those between the same two ends as one."""
    table = MACHINES[machine].table
    found: dict[tuple[str, str], list[str]] = {}
    for listed in rows(machine):
        row = listed.row
        if row.answer != GO or row.dest is None:
            continue
        dest = table.states(row.dest).name
        for source in _sources(machine, row.source):
            events = found.setdefault((source, dest), [])
            if source != dest and row.trigger.name.lower() not in events:
                events.append(row.trigger.name.lower())
    return [Edge(source, dest, tuple(events)) for (source, dest), events in found.items() if events]


def _sources(machine: str, states: tuple[int, ...]) -> Iterable[str]:
    """The states, or the group that they are."""
    for name, group in GROUPS[machine].items():
        if set(states) == set(group):
            return [name]
    return [MACHINES[machine].table.states(state).name for state in states]


def mermaid(machine: str) -> str:
    """A Mermaid `stateDiagram-v2`."""
    lines = ["stateDiagram-v2"]
    table = MACHINES[machine].table
    grouped = {state for group in GROUPS[machine].values() for state in group}
    for name, group in GROUPS[machine].items():
        lines.append(f"    state {name} {{")
        lines += [f"        {table.states(state).name}" for state in group]
        lines.append("    }")
    lines += [f"    {state.name}" for state in table.states if int(state) not in grouped]
    for edge in edges(machine):
        lines.append(f"    {edge.source} --> {edge.dest} : {', '.join(edge.events)}")
    return "\n".join(lines) + "\n"


def dot(machine: str) -> str:
    """A Graphviz graph: `kvproof diagram --format dot | dot -Tpdf -o lifecycle.pdf`."""
    table = MACHINES[machine].table
    lines = [
        f"digraph {machine} {{",
        "    rankdir=LR; compound=true; node [shape=box, style=rounded, fontname=Helvetica];",
        "    edge [fontname=Helvetica, fontsize=10];",
    ]
    lines += [f"    {state.name};" for state in table.states]
    first = {}
    for name, group in GROUPS[machine].items():
        members = [table.states(state).name for state in group]
        first[name] = members[0]
        lines.append(f"    subgraph cluster_{name} {{ label={name}; {'; '.join(members)}; }}")
    for edge in edges(machine):
        label = f'label="{", ".join(edge.events)}"'
        # Graphviz draws an arrow from a cluster as one from a member that is cut off at the frame.
        if edge.source in first:
            label += f", ltail=cluster_{edge.source}"
        lines.append(f"    {first.get(edge.source, edge.source)} -> {edge.dest} [{label}];")
    return "\n".join([*lines, "}"]) + "\n"


# Pixels.
COLUMN, LINE, LEFT, LETTER = 46, 22, 150, 8


def svg(machine: str) -> str:
    """The chart, as a stand-alone SVG document. Hovering over a line says why it is there."""
    table = MACHINES[machine].table
    going = [listed.row for listed in rows(machine) if listed.row.answer == GO]
    x = {int(state): LEFT + COLUMN * (i + 0.5) for i, state in enumerate(table.states)}
    head = 30 + LETTER * max(len(state.name) for state in table.states)
    right = LEFT + COLUMN * len(x)
    width, height = right + 460, head + LINE * len(going) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="Helvetica, Arial, sans-serif" '
        'font-size="12">',
        f"<title>The {machine} machine: what goes, in which state, and where it leads</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for state in table.states:
        at = x[int(state)]
        parts.append(
            f'<text transform="translate({at + 4:g} {head - 12}) rotate(-60)">{state.name}</text>'
            f'<line x1="{at:g}" x2="{at:g}" y1="{head - 8}" y2="{height - 10}" stroke="#ddd"/>'
        )
    for i, row in enumerate(going):
        y = head + LINE * (i + 0.5)
        words = guards_in_words(row)
        why = escape(f"{row.why}{f' (if {words})' if words else ''}")
        parts.append(f"<g><title>{why}</title>")
        if i % 2 == 0:
            parts.append(
                f'<rect y="{y - LINE / 2:g}" width="{width}" height="{LINE}" fill="#0366d6" '
                'fill-opacity="0.05"/>'
            )
        parts.append(f'<text x="8" y="{y + 4:g}">{row.trigger.name.lower()}</text>')
        dest = None if row.dest is None else x[row.dest]
        parts += _arrow([x[state] for state in row.source], dest, y)
        parts.append(
            f'<text x="{right + 12:g}" y="{y + 4:g}" fill="#555">{escape(row.why)}</text></g>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _arrow(sources: list[float], dest: float | None, y: float) -> list[str]:
    """Dots at the sources, a ring around each if the state stays, else an arrow to the end."""
    parts = [f'<circle cx="{at:g}" cy="{y:g}" r="4" fill="#0366d6"/>' for at in sources]
    if dest is None:
        return parts + [
            f'<circle cx="{at:g}" cy="{y:g}" r="7" fill="none" stroke="#0366d6"/>' for at in sources
        ]
    low, high = min([*sources, dest]), max([*sources, dest])
    parts.append(f'<line x1="{low:g}" x2="{high:g}" y1="{y:g}" y2="{y:g}" stroke="#0366d6"/>')
    for side in {1 if source > dest else -1 for source in sources}:
        parts.append(
            f'<path d="M {dest + 2 * side:g} {y:g} l {9 * side} -5 l 0 10 z" fill="#d73a49"/>'
        )
    return [*parts, f'<circle cx="{dest:g}" cy="{y:g}" r="3" fill="#d73a49"/>']


DRAW = {"mermaid": mermaid, "dot": dot, "svg": svg}
