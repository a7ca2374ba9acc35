"""What `kvstore WORD` does, one module per word: `add` declares its arguments, `run` does it.

`kvstore/cli.py` lists the modules; what they share is in `kvstore/commands/common.py`.
"""
