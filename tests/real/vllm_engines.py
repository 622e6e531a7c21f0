"""vLLM's own schedulers, several in one process and without a model, driven line by line: engines for ``tests.support.world``.

Run by vLLM's interpreter; nothing of this project is imported. PYTHONHASHSEED of this process is that of all its engines. Each
line on stdin is a JSON object with the number of an ``engine`` and an ``op``, and is answered by one line:

- ``start`` with ``config`` (that of ``vllm_scheduler.py``), ``end``, ``add``, ``abort``, ``reset`` (also as there) are answered
  with ``{"has_work": bool, "requests": [id, ...]}``: those that wait or run
- ``schedule`` and ``complete`` with ``timestamp`` begin a step and end the oldest one in flight; the latter has, besides,
  ``payload`` (hex; null when nothing is published), ``held`` (pairs of keys and copies), ``cached_tokens`` and ``finished``
"""

# mypy: ignore-errors
# The checker's environment has no vLLM, and this file is never imported from there.

import json
import os
import sys
import tempfile


def main():
    # vLLM logs to stdout and asks the network for models unless told otherwise.
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        engines = {}
        for line in sys.stdin:
            asked = json.loads(line)
            answer = obey(engines, asked)
            print(json.dumps(answer), file=answers, flush=True)


def obey(engines, asked):
    from vllm_scheduler import Judge

    number = asked["engine"]
    match asked["op"]:
        case "start":
            engines[number] = Engine(Judge(asked["config"]))
        case "end":
            del engines[number]
            return {}
    return engines[number].obey(asked)


class Engine:
    """One scheduler, and the events that it publishes."""

    def __init__(self, judge):
        from vllm_scheduler import Recorder

        class Keeping(Recorder):
            """Also keeps the events themselves, which the record has as maps only."""

            last = ()

            def take(self):
                self.last = super().take()
                return self.last

        self.judge = judge
        self.events = judge._recorder = judge._scheduler.kv_event_publisher = Keeping()

    def obey(self, asked):
        answer = {}
        match asked["op"]:
            case "add":
                self.judge.add(asked)
            case "abort":
                self.judge.abort(asked["id"])
            case "reset":
                self.judge.reset(asked["running"])
            case "schedule":
                self.judge.schedule()
            case "complete":
                answer = self.complete(asked["timestamp"])
        scheduler = self.judge._scheduler
        return {**answer, "has_work": scheduler.has_requests(), "requests": list(scheduler.requests)}

    def complete(self, timestamp):
        import msgspec
        from vllm.distributed.kv_events import KVEventBatch

        record = self.judge.complete()
        payload = None
        if self.events.last:
            # As ZmqEventPublisher does it (vLLM 0.32.0, vllm/distributed/kv_events.py).
            batch = KVEventBatch(ts=timestamp, events=list(self.events.last))
            batch.data_parallel_rank = 0
            payload = msgspec.msgpack.Encoder().encode(batch).hex()
        return {
            "payload": payload,
            "held": record["cached"],
            "cached_tokens": record["cached_tokens"],
            "finished": list(record["finished"]),
        }


if __name__ == "__main__":
    main()
