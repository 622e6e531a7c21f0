"""The connectors, one file each."""
