"""Loaders that the benchmarks compare, in addition to those in `superdl.experiments`."""
