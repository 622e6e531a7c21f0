"""Workloads: what was asked, when, and which prompts have which beginnings in common."""
