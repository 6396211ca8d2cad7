"""Partitioned topics: see `topics`."""
