"""Proofs, exploration, fuzzing, traces, reports and the command line."""
