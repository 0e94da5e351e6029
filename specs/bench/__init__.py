"""`kvproof bench`: tokens a second beside another engine and beside what the memory allows."""
