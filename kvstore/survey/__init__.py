"""A root seen from outside, beside a live store or without one, by docs/FORMAT.md alone.

`extents` lists them and reads their headers, `sums` adds them up, `blocks` says where a block lies
and what hangs on it, `watch` what changed since the last look. Opens no store, takes no lock,
changes nothing: last uses stay as they are. What goes while it is looked at is left out.
"""
