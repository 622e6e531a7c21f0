"""vLLM's offloading tiers on a machine without an accelerator: only the copying of bytes is done here.

Runs inside the engine (``spec_module_path`` of the connector). Knows vLLM 0.32.0: its own worker refuses a CPU, while
scheduler, managers, eviction, tiers and events need no other. Blocks of a chunk lie one behind the other.
"""

import time
from typing import Any

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec, _all_workers_barrier
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class _Copier(OffloadingWorker):  # type: ignore[misc]
    """Copies at once, and says so when it is asked."""

    def __init__(self, kv_caches: Any, blocks_per_chunk: int, region: Any) -> None:
        self._region = region
        self._blocks = blocks_per_chunk
        self._done: list[Any] = []
        self._pairs = []
        for each in kv_caches.tensors:
            cache = each.tensor.view(torch.int8).view(-1, each.page_size_bytes)
            self._pairs.append((cache, region.create_next_worker_view(each.page_size_bytes * blocks_per_chunk)))

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, src_spec.block_ids.tolist(), dst_spec.block_ids.tolist(), is_store=True)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, dst_spec.block_ids.tolist(), src_spec.block_ids.tolist(), is_store=False)

    def _copy(self, job_id: int, blocks: list[int], chunks: list[int], *, is_store: bool) -> bool:
        began, copied = time.perf_counter(), 0
        for at, block in enumerate(blocks):
            chunk, place = chunks[at // self._blocks], at % self._blocks
            for cache, host in self._pairs:
                size = cache.shape[1]
                kept = host[chunk][place * size : (place + 1) * size]
                if is_store:
                    kept.copy_(cache[block])
                else:
                    cache[block].copy_(kept)
                copied += size
        self._done.append(TransferResult(job_id, True, copied, time.perf_counter() - began))
        return True

    def get_finished(self) -> list[Any]:
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: Any) -> None:
        pass

    def shutdown(self) -> None:
        self._pairs.clear()
        self._region.cleanup()


class _OnCpu:
    barrier: Any = staticmethod(_all_workers_barrier)

    def _uses_shared_region(self) -> bool:
        return True

    def get_worker(self: Any, kv_caches: Any) -> Any:
        if self._worker is None:
            region = SharedOffloadRegion(
                engine_id=self.config.engine_id,
                num_chunks=self.num_chunks,
                rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
                barrier=self.barrier,
            )
            self._worker = _Copier(kv_caches, self.blocks_per_chunk, region)
        return self._worker


class CpuTier(_OnCpu, CPUOffloadingSpec):  # type: ignore[misc]
    """``spec_name`` of the CPU tier alone."""


class CpuAndFiles(_OnCpu, TieringOffloadingSpec):  # type: ignore[misc]
    """``spec_name`` of tiers. The scheduler maps the same memory: behind a barrier its creator would take its name away."""

    barrier = None
