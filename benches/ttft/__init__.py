"""The parts of vllm_ttft.py. Only `client` and `server` talk to anything; the rest is pure."""
