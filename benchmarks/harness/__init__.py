"""The harness shared by all benchmarks: fresh processes, CPU times, services, image sets and tables."""
