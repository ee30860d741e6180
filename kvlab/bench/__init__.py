"""Benchmarks: one file each, one way to pair, interleave and report."""
