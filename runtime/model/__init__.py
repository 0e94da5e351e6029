"""The real model: Llama-family loading, attention on paged KV, sampling, text in and out.

Nothing is imported here, so that a part can be used without the dependencies of the others.
Reading order: config, loading (huggingface, gguf_file), decoder, attention, sampler, runner.
"""
