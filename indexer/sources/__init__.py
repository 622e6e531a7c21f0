"""Where KV events come from: the only part of this package that touches sockets and threads."""
