"""`kvproof generate`: send one prompt to a model and print its answer as it comes."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated, Any

import typer

from . import exits


def command(
    model: Annotated[str, typer.Argument(help="A known name, a directory or a GGUF file.")],
    prompt: Annotated[str, typer.Argument(help="The text to continue; - reads stdin.")],
    chat: Annotated[
        bool, typer.Option("--chat", help="Send it as a message, with the model's chat template.")
    ] = False,
    system: Annotated[
        str | None, typer.Option(help="A system message before it; needs --chat.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens at most.")] = 256,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the likeliest.")] = 0.0,
    top_k: Annotated[int, typer.Option(min=-1, help="0 keeps every token.")] = 0,
    top_p: Annotated[float, typer.Option(min=0, max=1)] = 1.0,
    min_p: Annotated[float, typer.Option(min=0, max=1)] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(min=0)] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Makes sampling reproducible.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Ends the output; repeatable.")] = None,
    ignore_eos: Annotated[bool, typer.Option(help="Go on after the end token.")] = False,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    max_model_len: Annotated[int, typer.Option(min=2, help="Tokens, output included.")] = 2048,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, at the end.")] = False,
) -> int:
    """Generate for one PROMPT; the text comes on stdout as it is produced."""
    if system is not None and not chat:
        raise typer.BadParameter("it needs --chat", param_hint="--system")
    from ...runtime.api import EngineError
    from ...runtime.engine import Engine
    from ...runtime.model.errors import ModelError
    from ...runtime.sampling_params import SamplingParams

    text = sys.stdin.read() if prompt == "-" else prompt
    try:
        params = SamplingParams(
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
            stop=tuple(stop or ()),
            ignore_eos=ignore_eos,
        )
        engine = Engine.from_pretrained(
            model,
            dtype=dtype,
            device=device,
            device_blocks=max(2, -(-max_model_len // 16)),
            max_model_len=max_model_len,
            max_num_seqs=1,
        )
        with engine:
            messages = [{"role": "user", "content": text}]
            if system is not None:
                messages.insert(0, {"role": "system", "content": system})
            started = time.perf_counter()
            stream = engine.stream(engine.encode_chat(messages) if chat else text, params)
            outputs = []
            for output in stream:
                outputs.append(output)
                if not as_json:
                    typer.echo(output.text, nl=False)
            seconds = time.perf_counter() - started
    except (ModelError, EngineError, MemoryError, ValueError) as error:
        typer.echo(f"kvproof generate: {error}", err=True)
        return exits.USAGE
    return _told(outputs, seconds, as_json)


def _told(outputs: list[Any], seconds: float, as_json: bool) -> int:
    from ...runtime.streams import completed

    done = completed(outputs)
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "text": done.text,
                    "tokens": list(done.tokens),
                    "finish_reason": done.finish_reason.value,
                    "stop_reason": done.stop_reason,
                    "error": done.error,
                    "prompt_tokens": done.prompt_tokens,
                    "seconds": round(seconds, 3),
                }
            )
        )
    else:
        typer.echo()
        if sys.stderr.isatty():
            rate = len(done.tokens) / seconds
            typer.echo(
                f"[{done.prompt_tokens} prompt tokens, {len(done.tokens)} generated, "
                f"{rate:.0f} tokens/s, {done.finish_reason.value}]",
                err=True,
            )
    if done.failed:
        typer.echo(f"kvproof generate: {done.error}", err=True)
        return exits.FAILED
    return exits.OK
