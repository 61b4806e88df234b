"""The loaders that benchmarks compare, on top of `superdl.experiments.loaders`, and bare loops as bounds."""
