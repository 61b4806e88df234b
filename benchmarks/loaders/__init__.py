"""The loaders that benchmarks compare, beyond `superdl.experiments`, and bare loops."""
