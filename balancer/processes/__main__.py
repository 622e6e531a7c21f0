"""A child of the supervisor: ``python -m balancer.processes FD``, where FD is its end of the channel. Not for people."""

import sys

from balancer.processes.child import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
