"""KV connectors for vLLM's CPU engines: named by ``kv_connector_module_path``, imported by an engine, never by a test.

Knows what the connectors of vLLM 0.32.0 take from a GPU's library although they do not need it, and how NIXL is kept from using
up a core while it has nothing to do. What moves, when and where to is their own.
"""

# mypy: ignore-errors

import importlib
import os

POLL_MICROSECONDS = 1_000

kind = os.environ["KVLB_TESTS_CONNECTOR"]

if kind == "nixl":
    _bindings = importlib.import_module("nixl_cu12._api").nixlBind
    _Config = _bindings.nixlAgentConfig

    class PatientConfig(_Config):
        """An agent whose progress thread rests between two looks."""

        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, POLL_MICROSECONDS if name == "pthrDelay" else value)

    _bindings.nixlAgentConfig = PatientConfig
    NixlConnector = importlib.import_module("vllm.distributed.kv_transfer.kv_connector.v1.nixl").NixlConnector

if kind == "mooncake":
    torch = importlib.import_module("torch")
    torch.accelerator.current_device_index = lambda: 0
    _module = "vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_connector"
    MooncakeConnector = importlib.import_module(_module).MooncakeConnector
