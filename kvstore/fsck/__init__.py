"""A root checked and repaired by docs/FORMAT.md alone, without a store.

`check` looks at everything, `namespace` at one directory of extents, `extent` at one file; `quiet`
lists and reads without a trace; `run` is what a check under way knows and repairs, `report` what it
can find and how that is told.
"""
