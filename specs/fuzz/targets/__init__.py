"""The engines that the fuzzer knows by name."""
