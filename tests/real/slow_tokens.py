"""Runs in vLLM's interpreter: a logits processor that makes single requests slow, for tests in which a client leaves in time.

A request with ``"vllm_xargs": {"seconds_per_token": s}`` waits so long before each token; the others are not touched. Without
it the tiny model makes a thousand tokens a second, and the server, busy with them, answers nobody else for seconds.
"""

# mypy: ignore-errors
# The checker's environment has no vLLM, and this file is never imported from there.

import time

from vllm.v1.sample.logits_processor import AdapterLogitsProcessor


class SlowTokens(AdapterLogitsProcessor):
    def is_argmax_invariant(self):
        return False  # those that are would be left out of greedy sampling

    def new_req_logits_processor(self, params):
        seconds = (params.extra_args or {}).get("seconds_per_token")
        if seconds is None:
            return None

        def wait(output_ids, logits):
            time.sleep(seconds)
            return logits

        return wait
