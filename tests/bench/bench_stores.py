"""What choosing loads is worth: ``python -m tests.bench.bench_stores FILE:BLOCKS:BLOCK_SIZE:LOAD ... [--part 0.3] [--tps N]``.

Each trace on a fleet of the simple model with a shared store behind it, over links from 10 Gbit/s to host memory (128 KiB a
token). Printed is the mean time to first token of: the replica that holds most and no store (``nearest``), the default policy
without one (``never``), with all loaded that lies there (``always``), and with what is cheapest (``mixed``); and how far the
last one is off the best of the others. Each is a line of JSON, too.
"""

import argparse
from typing import Final

from simulations.grid import Case, run_all
from simulations.named_policies import parse
from simulations.results import Summary, summarise
from simulations.simple import SimpleFleet
from simulations.store import StoreSettings
from simulations.traces.reading import open_trace
from simulations.traces.scaling import first
from tests.bench.report import report

LINKS: Final = {
    "10": (9.0, 0.001),
    "25": (22.5, 0.001),
    "50": (45.0, 0.001),
    "100": (90.0, 0.001),
    "400": (360.0, 0.001),
    "RAM": (453.6, 0.0),
}
"""Gbit/s of data and seconds until the first byte, as ``balancer.economics.links`` has them; RAM is PCIe 5.0 x16."""


def kept(case: Case, run: object) -> Summary:
    return summarise(run)  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--part", type=float, default=0.3, help="of each trace's time (default 0.3)")
    parser.add_argument("--tps", type=float, default=27_000.0, help="prefill speed (default: an 8B model on an H100)")
    parser.add_argument("--jobs", type=int)
    args = parser.parse_args()
    for each in args.traces:
        file, blocks, size, load = each.rsplit(":", 3)
        trace = open_trace(file)[0]
        trace = first(trace, seconds=trace.arrivals[-1] * args.part)
        wanted = [("longest_prefix", StoreSettings(loads="never")), ("predicted_ttft", StoreSettings(loads="never"))]
        for gbits, latency in LINKS.values():
            wanted += [("predicted_ttft", StoreSettings(gbits, latency, loads="always"))]
            wanted += [("predicted_ttft", StoreSettings(gbits, latency, loads="mixed"))]
        cases = [
            Case(
                parse(policy)[0],
                SimpleFleet(args.replicas, int(blocks), int(size), prefill_tps=args.tps, load=float(load), store=store),
            )
            for policy, store in wanted
        ]
        nearest, never, *rest = [run.ttft_mean for run in run_all(trace, cases, jobs=args.jobs, keep=kept)]
        print(f"{trace.name}: {len(trace):,} requests, {blocks} blocks of {size}, load {load}", flush=True)
        print(f"  nearest {nearest:.4f} s, never {never:.4f} s")
        for name, always, mixed in zip(LINKS, rest[::2], rest[1::2], strict=True):
            off = mixed / min(nearest, never, always) - 1
            print(f"  {name:>4}: always {always:.4f} s, mixed {mixed:.4f} s, {off:+.1%}")
            figures: dict[str, object] = {
                "nearest": nearest,
                "never": never,
                "always": always,
                "mixed": mixed,
                "off": off,
            }
            report("stores", {"trace": each, "gbits": name, "part": args.part, "tps": args.tps}, figures)


if __name__ == "__main__":
    main()
