"""`kvproof bench model`: tokens a second beside another engine, and what memory allows."""
