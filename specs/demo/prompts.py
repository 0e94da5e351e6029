"""Prompts of a given length that share no prefix: plain English, made by rule."""

from __future__ import annotations

from .client import Api

_WHO = ("A sailor", "The baker", "My aunt", "One clerk", "Their doctor", "An old king", "The smith")
_DID = ("carried", "painted", "sold", "forgot", "repaired", "counted", "described")
_WHAT = ("a lantern", "two maps", "the bridge", "a basket of pears", "the clock", "nine letters")
_WHERE = ("by the river", "in the attic", "at the market", "under the stairs", "near the mill")


def text(number: int, sentences: int) -> str:
    """Sentences that begin differently for each number."""
    made = [f"Story {number}."]
    for at in range(sentences):
        turn = number * 31 + at * 7 + at * at
        made.append(
            f"{_WHO[turn % 7]} {_DID[(turn // 2) % 7]} {_WHAT[(turn // 3) % 6]} "
            f"{_WHERE[(turn + at) % 5]} on day {at + number + 1}."
        )
    return " ".join(made)


def prompt(api: Api, number: int, tokens: int) -> list[int]:
    """Exactly that many tokens of it, as the served model's tokenizer makes them."""
    ids = api.tokens_of(text(number, tokens // 8 + 8))
    assert len(ids) >= tokens, f"{len(ids)} tokens"
    return ids[:tokens]
