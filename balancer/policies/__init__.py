"""Routing policies, one a file; ``base`` says what they are and finds them by name."""
