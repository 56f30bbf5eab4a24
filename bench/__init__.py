"""Measurements: one module per claim, each printing a table of ratios to a peer measured in the same run.

`python -m bench` runs them all, `python -m bench prefixes import` runs two, `--quick` trades steadiness for time and
`--save` keeps the figures in bench/results. How to time something is in harness.py.
"""
