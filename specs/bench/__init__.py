"""`kvproof bench scheduler`: what the scheduler costs, beside vLLM's."""
