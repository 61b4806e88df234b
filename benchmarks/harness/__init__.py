"""The harness of all benchmarks: fresh processes, CPU times, services, image sets and tables."""
