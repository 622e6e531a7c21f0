"""How fast models run on accelerators, as far as arithmetic says."""
