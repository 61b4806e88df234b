"""The harness of all benchmarks: fresh processes and their CPU, cores, services, image sets, tables."""
