"""Loaders that the benchmarks compare, besides those of `superdl.experiments`."""
