"""`kvproof serve`: a model over HTTP."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import typer

from . import exits
from .paths import writable


def command(
    model: Annotated[
        str, typer.Argument(help="A known name, a directory or a GGUF file.")
    ] = "smollm2-135m",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    name: Annotated[
        str | None, typer.Option("--served-model-name", help="As clients call it.")
    ] = None,
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"], typer.Option(help="Of the weights.")
    ] = "auto",
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where it runs.")] = "auto",
    device_blocks: Annotated[int, typer.Option(min=2, help="KV blocks on the device.")] = 512,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens a block.")] = 16,
    host_tier_gb: Annotated[
        float, typer.Option(min=0, help="Host memory for KV, GB; 0: no tier.")
    ] = 0.0,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Requests that run at once.")] = 32,
    max_batched_tokens: Annotated[int, typer.Option(min=1, help="Tokens a step.")] = 2048,
    max_model_len: Annotated[
        int, typer.Option(min=2, help="Tokens of a request, output included.")
    ] = 2048,
    steps_in_flight: Annotated[int, typer.Option(min=1, max=2, help="Steps launched ahead.")] = 1,
    policy: Annotated[Literal["fcfs", "priority"], typer.Option(help="Who comes first.")] = "fcfs",
    session_deadline: Annotated[
        float, typer.Option(min=1, help="Seconds a session stays parked.")
    ] = 300.0,
    api_key: Annotated[
        list[str] | None,
        typer.Option(envvar="KVPROOF_API_KEY", help="Key of /v1; give it again for more tenants."),
    ] = None,
    admin_api_key: Annotated[
        str | None,
        typer.Option(envvar="KVPROOF_ADMIN_API_KEY", help="Opens admin and debug routes."),
    ] = None,
    dev: Annotated[
        bool, typer.Option(help="Admin and debug routes without a key, loopback only.")
    ] = False,
    allowed_origin: Annotated[
        list[str] | None, typer.Option(help="Origin of a web page to allow.")
    ] = None,
    max_requests: Annotated[
        int, typer.Option(min=1, help="Live at once; more are answered 503.")
    ] = 256,
    max_requests_per_key: Annotated[int, typer.Option(min=1, help="More are answered 429.")] = 128,
    max_queued: Annotated[int, typer.Option(min=1, help="Live without a first token.")] = 128,
    max_sessions_per_key: Annotated[int, typer.Option(min=1, help="More are answered 429.")] = 16,
    max_body_mb: Annotated[float, typer.Option(min=0.001, help="Largest body.")] = 4.0,
    on_sigterm: Annotated[
        Literal["drain", "abort"], typer.Option(help="What becomes of live requests.")
    ] = "drain",
    drain_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds until a drain aborts.")
    ] = 30.0,
    trace: Annotated[
        Path | None,
        typer.Option(callback=writable, help="Write every transition to this file, for conform."),
    ] = None,
    test_connector_delay: Annotated[
        float,
        typer.Option(
            min=0, help="FOR TESTS ONLY: seconds by which every load from the tier is delayed."
        ),
    ] = 0.0,
    check: Annotated[
        bool, typer.Option(help="Recompute every count after each step; slow.")
    ] = False,
) -> int:
    """Serve MODEL with OpenAI's API; Ctrl-C or SIGTERM ends it in good order."""
    from ...runtime.model.errors import ModelError
    from ...runtime.pretrained import EngineOptions, load_engine
    from ...runtime.server.run import listen, serve
    from ...runtime.server.settings import ServerConfig, ServerConfigError

    if test_connector_delay and not host_tier_gb:
        raise typer.BadParameter(
            "there are no loads without --host-tier-gb", param_hint="--test-connector-delay"
        )
    try:
        config = ServerConfig(
            model_name=name or model,
            max_model_len=max_model_len,
            host=host,
            port=port,
            api_keys=tuple(api_key or ()),
            admin_api_key=admin_api_key,
            dev=dev,
            allowed_origins=tuple(allowed_origin or ()),
            max_requests=max_requests,
            max_requests_per_key=max_requests_per_key,
            max_queued=max_queued,
            max_sessions_per_key=max_sessions_per_key,
            max_body=int(max_body_mb * (1 << 20)),
            session_deadline=session_deadline,
            drain=on_sigterm == "drain",
            drain_timeout=drain_timeout,
        )
    except ServerConfigError as error:
        raise typer.BadParameter(str(error)) from error
    # Before the model is loaded: an address that is taken should not cost a minute to find out.
    try:
        listening = listen(host, port)
    except OSError as error:
        typer.echo(
            f"kvproof serve: {host}:{port}: {error.strerror or error}; "
            f"choose another --port (0 takes a free one) or --host",
            err=True,
        )
        return exits.FAILED
    typer.echo(f"loading {model}", err=True)
    try:
        options = EngineOptions(
            dtype=dtype,
            device=device,
            device_blocks=device_blocks,
            block_size=block_size,
            host_tier_bytes=int(host_tier_gb * 1e9),
            max_num_seqs=max_num_seqs,
            max_batched_tokens=max_batched_tokens,
            max_model_len=max_model_len,
            steps_in_flight=steps_in_flight,
            policy=policy,
            session_deadline=session_deadline,
            test_load_delay=test_connector_delay,
            check=check,
        )
        engine = load_engine(model, options)
    except (ModelError, MemoryError, ValueError) as error:
        listening.close()
        typer.echo(f"kvproof serve: {error}", err=True)
        return exits.USAGE
    config = dataclasses.replace(config, max_model_len=engine.config.max_model_len)
    engine.trace(trace)
    if test_connector_delay:
        typer.echo(f"TEST CONNECTOR: every load is delayed by {test_connector_delay:g} s", err=True)
    serve(engine, engine.tokenizer, config, listening, typer.echo)
    return exits.OK
