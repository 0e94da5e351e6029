"""`kvproof bench model`: tokens per second on the CPU, beside vLLM's and the memory's limit."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from . import exits


def command(
    model: Annotated[
        str, typer.Argument(help="A known name, a directory or a GGUF file.")
    ] = "smollm2-135m",
    streams: Annotated[str, typer.Option(help="Requests at once, with commas.")] = "1,8,32",
    dtypes: Annotated[str, typer.Option(help="With commas.")] = "float32,bfloat16",
    prompt: Annotated[int, typer.Option(min=1, help="Prompt tokens of a stream.")] = 128,
    output: Annotated[int, typer.Option(min=1, help="Output tokens of a stream.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each case that count.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the model.")] = 2,
    steps_in_flight: Annotated[int, typer.Option(min=1, max=2)] = 1,
    vllm: Annotated[
        Path | None, typer.Option(help="Python of an environment with vLLM's CPU build.")
    ] = None,
    vllm_eager: Annotated[
        bool, typer.Option("--vllm-eager", help="Do not wait for vLLM to compile the model.")
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Also say where a decode step's time goes.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> int:
    """Measure MODEL on the CPU: greedy, ignore_eos, new random prompts in every run."""
    from ...runtime.model.errors import ModelError
    from ..modelbench.contestants import ContestantError

    try:
        counts = [int(part) for part in streams.split(",")]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--streams") from error
    kinds = dtypes.split(",")
    if vllm is not None and not vllm.exists():
        raise typer.BadParameter(f"{vllm} does not exist", param_hint="--vllm")
    console = Console(stderr=as_json)
    try:
        with console.status("measuring") as status:
            asked = _Asked(
                model, counts, kinds, prompt, output, rounds, threads, steps_in_flight, vllm,
                vllm_eager, profile,
            )  # fmt: skip
            found = _measure(asked, status.update)
    except (ModelError, ContestantError, ValueError) as error:
        typer.echo(f"kvproof bench model: {error}", err=True)
        return exits.FAILED
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        _print(console, found)
    return exits.OK


@dataclass(frozen=True)
class _Asked:
    """What the command was asked to measure: see its options."""

    model: str
    streams: list[int]
    dtypes: list[str]
    prompt: int  # tokens of a stream
    output: int  # tokens of a stream
    rounds: int
    threads: int
    steps_in_flight: int
    vllm: Path | None
    vllm_eager: bool
    profile: bool


def _measure(asked: _Asked, say: Callable[[str], object]) -> dict[str, Any]:
    """The figures as plain data; `say` is told what is being measured."""
    from ...runtime.model.export import export
    from ...runtime.model.zoo import resolve
    from ..modelbench import contestants
    from ..modelbench.compare import compare
    from ..modelbench.floor import bandwidth

    threads, steps, vllm = asked.threads, asked.steps_in_flight, asked.vllm
    sizes = (asked.prompt, asked.output)
    speed = bandwidth(threads)
    weights: dict[str, int] = {}
    found: dict[str, Any] = {
        "model": asked.model, "prompt": asked.prompt, "output": asked.output, "threads": threads,
        "rounds": asked.rounds, "steps_in_flight": steps,
        "cases": [], "profiles": [],
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="kvproof-bench-") as name:
        scratch = Path(name)
        if vllm is not None:
            say("exporting the model for vLLM")
            export(resolve(asked.model), scratch / "model", "float32", lambda done, total: None)
        for dtype in asked.dtypes:
            say(f"{dtype}: loading")
            engines = [contestants.own(asked.model, dtype, threads, steps)]
            try:
                if vllm is not None:
                    engines.append(
                        contestants.vllm(
                            vllm, scratch / "model", dtype, threads, scratch, asked.vllm_eager
                        )
                    )
                weights[dtype] = int(engines[0].about["weight_bytes"])
                for figure in compare(engines, dtype, asked.streams, sizes, asked.rounds):
                    found["cases"].append(figure.as_dict())
                    say(f"{dtype}: {figure.streams} streams done")
                    # The best of many looks: others disturb it as they disturb the engines.
                    speed = max(speed, bandwidth(threads))
            finally:
                for engine in engines:
                    engine.close()
            if asked.profile:
                say(f"{dtype}: profile")
                found["profiles"] += _profiles(asked, dtype)
    found["memory_gigabytes_per_second"] = round(speed / 1e9, 1)
    for case in found["cases"]:
        # Tokens a second if a decode step took as long as reading the weights once.
        case["floor"] = round(case["streams"] * speed / weights[case["dtype"]], 1)
    return found


def _profiles(asked: _Asked, dtype: str) -> list[dict[str, Any]]:
    import torch

    from ...runtime.engine import Engine
    from ..modelbench.parts import profile
    from ..modelbench.workload import Load

    torch.set_num_threads(asked.threads)
    with Engine.from_pretrained(
        asked.model, dtype=dtype, device="cpu", device_blocks=1024, max_num_seqs=64,
        max_batched_tokens=8192, steps_in_flight=asked.steps_in_flight,
    ) as engine:  # fmt: skip
        return [
            {
                "dtype": dtype,
                "streams": count,
                "milliseconds": profile(
                    engine, Load(count, asked.prompt, asked.output, seed=count)
                ),
            }
            for count in asked.streams
        ]


def _print(console: Console, found: dict[str, Any]) -> None:
    console.print(
        f"{found['model']}, {found['prompt']} prompt and {found['output']} output tokens, "
        f"{found['threads']} threads, {found['rounds']} rounds; "
        f"memory reads {found['memory_gigabytes_per_second']} GB/s"
    )
    table = Table(
        "dtype",
        "streams",
        "kvproof",
        "vllm",
        "ratio",
        "cpu ratio",
        "floor",
        title="tokens a second",
    )
    for case in found["cases"]:
        rates = case["tokens_per_second"]
        ratio = case.get("ratio_to_vllm")
        table.add_row(
            case["dtype"],
            str(case["streams"]),
            _spread(rates["kvproof"]),
            _spread(rates["vllm"]) if "vllm" in rates else "",
            _ratio(ratio),
            _ratio(case.get("processor_ratio_to_vllm")),
            f"{case['floor']:.0f}",
        )
    console.print(table)
    for one in found["profiles"]:
        table = Table("part", "ms", "%", title=f"a decode step, {one['dtype']}, {one['streams']}")
        whole = one["milliseconds"]["step"]
        for part, value in sorted(one["milliseconds"].items(), key=lambda item: -item[1]):
            table.add_row(part, f"{value:.2f}", f"{100 * value / whole:.0f}")
        console.print(table)


def _spread(rates: list[float]) -> str:
    import statistics

    return f"{statistics.median(rates):.0f} ({min(rates):.0f}–{max(rates):.0f})"


def _ratio(ratio: dict[str, float] | None) -> str:
    return f"{ratio['median']:.2f} ({ratio['low']:.2f}–{ratio['high']:.2f})" if ratio else ""
