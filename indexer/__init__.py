"""Which replica holds which block of KV cache, as told by the engines' own events.

Imports nothing: ``sources`` alone needs zmq.
"""
