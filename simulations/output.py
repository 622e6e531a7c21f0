"""Files that commands write where people ask for them.

Knows paths and flags. Never knows what is in a file.
"""

from pathlib import Path

from balancer.errors import ConfigError


def write_file(flag: str, path: Path, data: bytes) -> None:
    """Write it; ``flag`` is where the path was given.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        path.write_bytes(data)
    except OSError as error:
        raise ConfigError(f"{flag} {path}: {error.strerror}; name a file that can be written") from error
