"""A report of `kvproof check` as one HTML page: nothing is fetched, nothing is run.

What was asked and what became of it, counterexamples as pictures, formulas, the lifecycle, what is
assumed and what is not proved: for a reader who has not run it, and for an artifact of a CI run.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from ..check.conditions import Verdict
from ..diagrams import svg as chart
from ..listing import MACHINES, reset_table, rows
from ..page import WORDS, cells
from . import sequence

#: No script, no address outside of the page.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_CLASSES = {
    Verdict.PROVED.value: "proved",
    Verdict.REFUTED.value: "refuted",
    Verdict.UNKNOWN.value: "unknown",
    Verdict.RESTS.value: "unknown",
}


def page(report: Mapping[str, Any], formulas: Mapping[str, Sequence[str]]) -> str:
    """The page of a report with its `details`. `formulas` are the lines of each obligation."""
    style = resources.files(__package__).joinpath("page.css").read_text("utf-8")
    verdict = report["verdict"]
    failed = _counterexamples(report)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        f"<title>kvproof check: {escape(verdict)}</title>",
        f"<style>{style}</style></head><body>",
        "<header><h1>kvproof check</h1>",
        f'<p class="verdict {_CLASSES[verdict]}">{escape(verdict)}</p>',
        f"<p>{_summary(report)}</p>{_contents(bool(failed))}</header><main>",
        _section("obligations", "Obligations", _obligations(report)),
    ]
    if failed:
        parts.append(_section("counterexamples", "Counterexamples", failed))
    if report["vacuous"]:
        parts.append(_section("vacuous", "Vacuous", _list(report["vacuous"])))
    parts += [
        _section("lifecycle", "The lifecycle", _lifecycle()),
        _section("formulas", "Formulas", _formulas(report, formulas)),
        _section("assumptions", "What is assumed", _assumptions(report)),
        _section("not-proved", "What is not proved", _list(report["not_proved"])),
        "</main></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _summary(report: Mapping[str, Any]) -> str:
    version = importlib.metadata.version("kvproof")
    words = (
        f"{report['conditions']} conditions over {report['moves']} ways in which actions go, and "
        f"{report['by_frame']} more by frame; {report['rows']} rows that go; "
        f"{report['seconds']:.1f} s; kvproof {version}"
    )
    other = report["second_solver"]
    if other is not None:
        words += (
            f". cvc5 agrees on {other['agreed']} conditions, says nothing of "
            f"{len(other['unknown'])}, disagrees on {len(other['disagreed'])}"
        )
    return escape(words)


def _contents(failed: bool) -> str:
    names = {"obligations": "obligations"}
    if failed:
        names["counterexamples"] = "counterexamples"
    names |= {
        "lifecycle": "the lifecycle",
        "formulas": "formulas",
        "assumptions": "what is assumed",
        "not-proved": "what is not proved",
    }
    links = "".join(f'<a href="#{name}">{words}</a>' for name, words in names.items())
    return f"<nav>{links}</nav>"


def _section(name: str, title: str, body: str) -> str:
    return f'<section id="{name}"><h2>{title}</h2>\n{body}\n</section>'


def _obligations(report: Mapping[str, Any]) -> str:
    body = []
    for each in report["obligations"]:
        verdict = each["verdict"]
        shown = escape(verdict)
        if verdict == Verdict.RESTS.value:
            shown += f": {escape(', '.join(each['rests_on']))}"
        parts = ", ".join(f"{count} {part}" for part, count in each["parts"].items())
        name = escape(each["id"])
        body.append(
            f'<tr id="{name}"><th><a href="#formulas-{name}">{name}</a></th>'
            f"<td>{escape(each['statement'])}</td><td>{escape(each['method'])}</td>"
            f'<td class="number" title="{escape(parts)}">{each["conditions"]}</td>'
            f'<td class="number">{each["seconds"]:.1f} s</td>'
            f'<td class="{_CLASSES[verdict]}">{shown}</td></tr>'
        )
    head = ("id", "obligation", "method", "conditions", "time", "verdict")
    return _table(head, body)


def _counterexamples(report: Mapping[str, Any]) -> str:
    found = []
    for each in report["obligations"]:
        examples = report.get("examples", {}).get(each["id"], ())
        for lines, example in zip(each["counterexamples"], examples, strict=True):
            found.append(_counterexample(each["id"], lines, example))
        more = each["refuted"] - len(each["counterexamples"])
        if more > 0:
            found.append(f"<p>and {more} more conditions of {each['id']} that are refuted</p>")
        if each["unknown"]:
            found.append(f"<h3>{each['id']} is undecided</h3>{_list(each['unknown'])}")
    return "\n".join(found)


def _counterexample(name: str, lines: Sequence[str], example: Mapping[str, Any]) -> str:
    broken = f"{name} {example['part']}: {example['broken']}"
    script = example["script"]
    if script is not None:
        messages = [sequence.message(words) for words in script]
        caption = "The shortest script of events from the start that gets there."
    else:
        words = example["events"] or [example["action"].replace("_", " ") or "no event"]
        messages = [sequence.message(each) for each in words]
        caption = f"One event, from the state below. {example['searched']}".strip()
    title = f"{broken}. {'; '.join(each.label for each in messages)}"
    picture = sequence.svg(messages, broken, title)
    facts = [
        f'<tr class="{"changed" if before != after else ""}"><th>{escape(fact)}</th>'
        f"<td>{escape(before)}</td><td>{escape(after)}</td></tr>"
        for fact, (before, after) in example["facts"].items()
    ]
    told = ", ".join(f"{fact} = {value}" for fact, value in example["told"].items())
    text = escape("\n".join(lines))
    return "\n".join(
        [
            f'<article class="counterexample"><h3>{escape(broken)}</h3>',
            f"<p><code>{escape(example['formula'])}</code></p>",
            f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>",
            _table(("fact", "before", "after"), facts) if facts else "",
            f"<p>told: {escape(told)}</p>" if told else "",
            f"<details><summary>as text</summary><pre>{text}</pre></details>",
            "</article>",
        ]
    )


def _lifecycle() -> str:
    parts = []
    for name in MACHINES:
        head = ("event", "from", "if", "answer", "to", "effects", "why")
        body = [
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells(listed)) + "</tr>"
            for listed in rows(name)
        ]
        parts += [
            f"<h3>The {name}</h3><p>{escape(WORDS[name])}</p>",
            f'<figure class="chart">{chart(name)}<figcaption>Dots: where it may come from; the '
            "arrow: where it leads; a ring: the state stays.</figcaption></figure>",
            f"<details><summary>every row of the {name}'s table</summary>"
            f"{_table(head, body)}</details>",
        ]
    titles, *lines = reset_table()
    body = ["<tr>" + "".join(f"<td>{escape(c)}</td>" for c in line) + "</tr>" for line in lines]
    parts.append(f"<h3>What a reset does</h3>{_table(titles, body)}")
    return "\n".join(parts)


def _formulas(report: Mapping[str, Any], formulas: Mapping[str, Sequence[str]]) -> str:
    parts = []
    for each in report["obligations"]:
        name = escape(each["id"])
        text = escape("\n".join(formulas.get(each["id"], ())))
        parts.append(
            f'<details id="formulas-{name}"><summary>{name}: {escape(each["statement"])}'
            f"</summary><pre>{text}</pre></details>"
        )
    return "\n".join(parts)


def _assumptions(report: Mapping[str, Any]) -> str:
    def row(each: Mapping[str, Any], whom: str) -> str:
        words = (each["name"], each["words"], each["owner"], each["checked"], whom)
        return "<tr>" + "".join(f"<td>{escape(word)}</td>" for word in words) + "</tr>"

    head = ("assumption", "in words", "owner", "where a breach is noticed", "for")
    world = [row(each, ", ".join(each["for"])) for each in report["assumptions"]]
    told = [row(each, "events") for each in report["contracts"]]
    return (
        f"<h3>Of the world: that what can happen does happen</h3>{_table(head, world)}"
        f"<h3>Of what events are told</h3>{_table(head, told)}"
    )


def _table(head: Iterable[str], body: Iterable[str]) -> str:
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    rows_ = "\n".join(body)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>\n{rows_}\n</tbody></table>"


def _list(lines: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"
