"""The same as ``bench_stores`` in the detailed model: ``python -m tests.bench.bench_stores_detailed FILE [--parts 6]``.

A long trace is cut into parts that have little in common but what their prompts begin with, and each is played by itself:
where more comes than the fleet can do, one request that goes elsewhere changes all that follow: one part says nothing.
Printed is the mean over the parts of the mean time to first token, and what it was in each of them, without a store, with all
loaded that lies there (``always``), and with what is cheapest (``mixed``). Each is a line of JSON, too.
"""

import argparse
import statistics
from typing import Final

from simulations.detailed_fleet import DetailedFleet
from simulations.grid import Case, run_all
from simulations.named_policies import parse
from simulations.store import StoreSettings
from simulations.traces.reading import open_trace
from simulations.traces.scaling import between
from tests.bench.bench_stores import kept
from tests.bench.report import report

LINKS: Final = {
    "1": (1.0, 0.001),
    "5": (5.0, 0.001),
    "10": (10.0, 0.001),
    "25": (25.0, 0.001),
    "100": (100.0, 0.001),
    "RAM": (450.0, 0.0),
}
"""Gbit/s of data and seconds until the first byte."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--parts", type=int, default=6)
    parser.add_argument("--requests", type=int, default=250, help="of each part")
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=781, help="of 512 tokens")
    parser.add_argument("--load", type=float, action="append", help="one or more (default: 0.3, 0.4 and 0.7)")
    parser.add_argument("--link", choices=LINKS, action="append", help="one or more (default: all)")
    parser.add_argument("--jobs", type=int)
    args = parser.parse_args()
    whole = open_trace(args.trace)[0]
    parts = [between(whole, at * args.requests, (at + 1) * args.requests) for at in range(args.parts)]
    policy = parse("predicted_ttft")[0]
    for load in args.load or [0.3, 0.4, 0.7]:
        wanted: list[tuple[str, str, StoreSettings | None]] = [("", "none", None)]
        for name in args.link or LINKS:
            gbits, latency = LINKS[name]
            wanted += [(name, "always", StoreSettings(gbits, latency, loads="always"))]
            wanted += [(name, "mixed", StoreSettings(gbits, latency, loads="mixed"))]
        cases = [
            Case(
                policy,
                DetailedFleet(replicas=args.replicas, blocks=args.blocks, block_size=512, load=load, store=store),
            )
            for _, _, store in wanted
        ]
        played = [[run.ttft_mean for run in run_all(each, cases, jobs=args.jobs, keep=kept)] for each in parts]
        for (link, kind, _), *row in zip(wanted, *played, strict=True):
            told = " ".join(f"{each:.1f}" for each in row)
            print(f"load {load} {link:>4} {kind:>6}: {statistics.mean(row):.2f} s ({told})", flush=True)
            inputs = {"trace": args.trace, "requests": args.requests, "load": load, "gbits": link, "loads": kind}
            report("stores_detailed", inputs, {"mean": statistics.mean(row), "parts": list(row)})


if __name__ == "__main__":
    main()
