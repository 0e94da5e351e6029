"""Plug-ins that put the declaration beside other engines; each needs its engine, none ours."""
