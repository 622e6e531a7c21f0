"""Shared stores of KV blocks, each kind by its connector."""
