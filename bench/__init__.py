"""Penstock's benchmark suite: Penstock, its peers and the machine's own limits, side by side in one run.

`python -m bench --help` says how to use it.
"""
