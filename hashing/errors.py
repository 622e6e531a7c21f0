"""What can go wrong before a block is hashed: the recipe is incomplete, or the request has no hash.

Knows only the two classes. A message names the field first and ends with what to do about it. Both are
``ValueError``, so that msgspec reports them as a fault of the decoded input. Nothing here is raised halfway
through a chain's state: whoever catches one still holds a usable chain.
"""


class RecipeError(ValueError):
    """The recipe contradicts itself, or the engine's root hash cannot be known from outside."""


class UnhashableError(ValueError):
    """The request has no block hash that we could compute: a token, an extra or a missing fact."""
