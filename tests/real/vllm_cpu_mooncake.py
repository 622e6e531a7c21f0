"""vLLM's Mooncake connectors on a machine without an accelerator: what is computed there is there at once.

Runs inside the engine (``kv_connector_module_path``). Knows vLLM 0.32.0, whose connector waits for an event of the device.
"""

from typing import Any

import torch


class _AtOnce:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def record(self, *args: Any) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


torch.cuda.Event = _AtOnce
torch.accelerator.current_device_index = lambda: 0

from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store import connector  # noqa: E402

MooncakeStoreConnector = connector.MooncakeStoreConnector
