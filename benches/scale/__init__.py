"""Parts of bench_scale.py, one quantity each."""
