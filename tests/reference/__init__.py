"""The reference engine: the declaration run end to end with dictionaries and loops."""
