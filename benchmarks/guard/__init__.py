"""Ratios that must not get much worse: ``pytest benchmarks/guard``; ``python -m benchmarks.guard`` sets them anew."""
