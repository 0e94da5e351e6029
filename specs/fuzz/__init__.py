"""The stateful fuzzer: one protocol, one oracle, any engine."""
