"""kvstore inside vLLM, as a secondary tier below its CPU tier (`kvstore_vllm.tier`).

Importing this package does not import vLLM.
"""
