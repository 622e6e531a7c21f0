"""How property tests look for examples.

None has a deadline: how long an example takes says how busy the machine is. With ``--hypothesis-profile=fixed`` the same code
is tried with the same examples every time, so that what lands does not depend on luck; without it each run tries others.
"""

from hypothesis import settings

settings.register_profile("searching", deadline=None)
settings.register_profile("fixed", deadline=None, derandomize=True)
settings.load_profile("searching")
