"""The harness of all benchmarks: fresh processes, CPU, services, image sets, tables."""
