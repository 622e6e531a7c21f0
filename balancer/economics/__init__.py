"""Whether to find, load or compute a prompt: what its cache weighs, how long it takes to move it, and how long to compute it.

Knows models, links and speeds, as values. Never knows requests, replicas or engines' states.
"""
