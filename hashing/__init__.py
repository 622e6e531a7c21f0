"""Token ids -> block hashes, exactly as vLLM computes them.

Imports nothing: one module a name (``recipes``, ``extras``, ``chain``, ``external``).
"""
