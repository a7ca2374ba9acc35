"""The demo: a prompt is prefilled once, and every later prefill of it streams from disk.

`python -m kvstore_demo` runs it (`make demo` does so after set-up). Each step is a process of its
own, so that nothing can be warm by accident; the steps meet only in the store's files.
Not part of the library: nothing imports this package.
"""
