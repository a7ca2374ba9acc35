"""Traces of requests replayed against a store: what hits, what it costs, what it would need.

`files` opens, `traces` reads formats into `Request`s, `simulated` and `real` answer requests,
`reuse` looks at the trace alone, `run` drives all of it, `result`, `report` and `plot` tell.
"""
