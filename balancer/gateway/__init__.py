"""The HTTP side: what clients talk to."""
