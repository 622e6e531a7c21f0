"""``python -m balancer`` is ``kvlb``."""

import sys

from balancer.cli import main

if __name__ == "__main__":
    sys.exit(main())
