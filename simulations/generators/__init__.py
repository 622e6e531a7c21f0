"""Workloads by settings and a seed. Each file has generators of one kind, which register themselves (``base``)."""
