"""A tokenizer that needs no model: one token a byte, and a chat template."""

import tokenizers
from kvproof.runtime.model.chat import ChatTemplate
from kvproof.runtime.model.tokenizer import Tokenizer
from tokenizers import decoders, models, pre_tokenizers

END = "<|end|>"
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """256 tokens for bytes, and one special token, the last."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate(alphabet)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([END])
    special = {"eos_token": END}
    return Tokenizer(backend, special, ChatTemplate(TEMPLATE, special))
