"""The reset scenario on a served model: what `kvproof demo` runs after the proofs.

Read `scenario` first (what is run, in which order), then `trials` (what a trial does and what it
checks). Nothing here imports the engine: everything is seen over HTTP, as an operator sees it.
"""
