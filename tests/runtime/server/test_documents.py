"""The clients that the manual shows, run against a server."""

import contextlib
import io
import re
from pathlib import Path

from .stub import continuation

DOCS = Path(__file__).parents[3] / "docs"


def shown(page: str) -> str:
    """The page's Python, all of it."""
    return "".join(re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S))


def run(page: str, served, globals_: dict) -> str:
    source = shown(page).replace("127.0.0.1:8000", served.url.removeprefix("http://"))
    assert served.url.removeprefix("http://") in source
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(source, page, "exec"), globals_)
    return said.getvalue()


def test_the_openai_client_of_the_manual_streams(serve):
    served = serve(model_name="smollm2-135m")
    said = run("server.md", served, {})
    prompt = served.tokenizer.encode("Once upon a time").tolist()
    assert said == served.tokenizer.decode(continuation(served.tokenizer, prompt, 32))


def test_the_session_client_of_the_manual_survives_its_socket(served):
    names: dict = {}
    first, second = run("sessions.md", served, names).splitlines()
    assert len(first) == 24
    assert len(second) == 12
    session = names["Session"]("a second one", max_tokens=6)
    before = session.turn()
    assert len(before) == 6
    session._socket.close()
    session.seen -= 1  # as if the turn's end had been lost with the socket
    assert session.turn() == ""
    assert len(session.chunk(" more")) == 6
    session.close()
