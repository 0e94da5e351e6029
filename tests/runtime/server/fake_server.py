"""A server process on a fake device: `python -m tests.runtime.server.fake_server abort|drain`."""

import sys

import typer
from kvproof.runtime.server.run import listen, serve
from kvproof.runtime.server.settings import ServerConfig

from .fake_device import fake_engine
from .texts import byte_tokenizer


def main(mode: str, drain_timeout: str) -> None:
    tokenizer = byte_tokenizer()
    engine = fake_engine(tokenizer, token_seconds=0.005, load_delay=0.5, tier_bytes=1 << 20)
    config = ServerConfig(
        model_name="fake",
        max_model_len=2048,
        port=0,
        dev=True,
        drain=mode == "drain",
        drain_timeout=float(drain_timeout),
    )
    listening = listen(config.host, config.port)
    serve(engine, tokenizer, config, listening, typer.echo)
    import threading

    left = [one.name for one in threading.enumerate() if one is not threading.main_thread()]
    typer.echo(f"left: {left}")


if __name__ == "__main__":
    main(*sys.argv[1:])
