"""Runs in vLLM's interpreter: vLLM 0.32.0's own ``ZmqEventPublisher``, on the two ports given, driven by lines on stdin.

The third argument is the host of the events' endpoint: ``*`` listens, any other connects. The first line is what it then tells.

Each line is a number: so many batches of one stored event with 64 blocks of 16 tokens (about 5 kB). When they are published
and buffered, the number of all batches so far goes to stdout. Timestamps are the sequence numbers. Never knows kvlb.
"""

# mypy: ignore-errors
# The checker's environment has no vLLM, and this file is never imported from there.

import sys
import time

from vllm.distributed.kv_events import BlockStored, KVEventBatch, ZmqEventPublisher

BLOCKS, BLOCK_SIZE = 64, 16


def batch(sequence):
    event = BlockStored(
        block_hashes=[sequence * BLOCKS + block + 2**63 for block in range(BLOCKS)],
        parent_block_hash=None,
        token_ids=[100_000 + sequence % 20_000] * (BLOCKS * BLOCK_SIZE),
        block_size=BLOCK_SIZE,
        lora_id=None,
        medium="GPU",
        lora_name=None,
        extra_keys=[None] * BLOCKS,
        group_idx=0,
        kv_cache_spec_kind="full_attention",
    )
    return KVEventBatch(ts=float(sequence), events=[event])


def main():
    events, replay, host = sys.argv[1:]
    publisher = ZmqEventPublisher(0, endpoint=f"tcp://{host}:{events}", replay_endpoint=f"tcp://*:{replay}")
    print(publisher.get_publisher_config().endpoint, flush=True)
    published = 0
    for line in sys.stdin:
        for _ in range(int(line)):
            publisher.publish(batch(published))
            published += 1
        while not publisher._buffer or publisher._buffer[-1][0] < published - 1:
            time.sleep(0.01)
        print(published, flush=True)
    publisher.shutdown()


if __name__ == "__main__":
    main()
