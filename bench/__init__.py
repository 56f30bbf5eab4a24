"""Benchmarks: one module per claim. Each prints a table of ratios to a reference measured in the same run.

`python -m bench` runs all of them, `python -m bench prefixes import` runs two. `--quick` uses fewer and shorter rounds,
`--save` appends the results to bench/results. harness.py has the timing functions.
"""
