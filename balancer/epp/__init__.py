"""The endpoint picker: what a proxy asks over ext_proc where a request shall go (docs/epp.md)."""
