"""Readers of trace files. Each file has one format, which registers itself (``base``), or what several have in common."""
