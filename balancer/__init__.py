"""Choose a replica for each request, and forward it there.

Imports nothing: the simulator uses the pure modules of this package without aiohttp or zmq.
"""
