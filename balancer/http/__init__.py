"""HTTP for paths that must cost little: whole requests in, whole answers or pieces out."""
