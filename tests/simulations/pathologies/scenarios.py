"""The scenarios: traffic and faults under which routers are known to fail, and the figures that come of each.

Knows what is asked, and what is measured. Never judges: the laws are in ``test_pathologies``, the figures as they were in
``figures.toml``. Times are seconds; a share of 1 is what every replica would have if all had the same.
"""

import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final, TypeAlias

import msgspec

from simulations.detailed_fleet import DetailedFleet, Restart
from simulations.results import REFUSED
from simulations.traces.trace import NO_SESSION
from tests.simulations.pathologies.playing import DEFAULT, FLEET, Foreign, Played, Traffic, play

Figures: TypeAlias = dict[str, float]

SCENARIOS: Final[dict[str, Callable[[], Figures]]] = {}


def scenario(made: Callable[[], Figures]) -> Callable[[], Figures]:
    """Plays it once, however often it is asked for."""
    SCENARIOS[made.__name__] = cache(made)
    return SCENARIOS[made.__name__]


def changed(**changes: object) -> DetailedFleet:
    return msgspec.structs.replace(FLEET, **changes)


def share(counts: Sequence[int], replica: int) -> float:
    """How many times its even part one of them had."""
    return counts[replica] * len(counts) / max(1, sum(counts))


def talks(
    rate: float,
    seconds: float,
    *,
    systems: int = 4,
    system: int = 512,
    answer: int = 100,
    seed: int = 3,
) -> Traffic:
    """Conversations of six turns, so many new ones in ten seconds, behind a few shared system prompts."""
    dice, traffic = random.Random(seed), Traffic()
    count = int(rate * seconds / 10)
    asks = []
    for talk in range(count):
        at, texts = seconds * talk / count, [(f"system {talk % systems}", system)]
        for turn in range(6):
            texts.append((f"talk {talk} {turn}", int((400 if turn else 800) * dice.uniform(0.3, 1.7))))
            asks.append((at, list(texts), talk))
            at += 8.0 * dice.expovariate(1) + 1
    for at, texts, talk in sorted(asks, key=lambda each: each[0]):
        traffic.ask(at, *texts, answer=answer, conversation=talk)
    return traffic


# Hot and cold bursts


@scenario
def hot_prefix_at_once() -> Figures:
    """200 requests at one moment share 4,096 tokens that one of 8 replicas holds."""
    figures: Figures = {}
    for policy in (DEFAULT, "longest_prefix", "round_robin"):
        traffic = Traffic()
        now = traffic.warm_up()
        traffic.ask(now, ("hot", 4096))
        first = len(traffic)
        for each in range(200):
            traffic.ask(now + 10, ("hot", 4096), (f"tail {each}", 64), answer=64)
        played = play(traffic, policy=policy, first=first)
        figures |= {
            f"{policy}.ttft_p50": played.ttft(0.5),
            f"{policy}.ttft_p95": played.ttft(0.95),
            f"{policy}.replicas": sum(count > 0 for count in played.asked()),
            f"{policy}.largest_share": max(share(played.asked(), each) for each in range(8)),
        }
    return figures


@scenario
def hot_prompt_in_a_row() -> Figures:
    """200 requests, one every 5 ms, share 2,048 tokens that one of 8 replicas holds, and have 20 of their own."""
    figures: Figures = {}
    for policy in (DEFAULT, "longest_prefix"):
        traffic = Traffic()
        now = traffic.warm_up()
        traffic.ask(now, ("hot", 2048))
        first = len(traffic)
        for each in range(200):
            traffic.ask(now + 10 + each * 0.005, ("hot", 2048), (f"tail {each}", 20), answer=64)
        played = play(traffic, policy=policy, first=first)
        chosen = played.run.chosen[first:]
        home = played.run.chosen[first - 1]
        figures |= {
            f"{policy}.stayed_at_first": next((at for at, each in enumerate(chosen) if each != home), len(chosen)),
            f"{policy}.ttft_p50": played.ttft(0.5),
            f"{policy}.ttft_p95": played.ttft(0.95),
            f"{policy}.largest_share": max(share(played.asked(), each) for each in range(8)),
        }
    return figures


@scenario
def hot_long_prompt() -> Figures:
    """8 requests a second share 16,384 tokens that one of 8 replicas holds, as agents' do, and have answers of 512."""
    figures: Figures = {}
    for policy in (DEFAULT, "round_robin"):
        traffic = Traffic()
        now = traffic.warm_up()
        traffic.ask(now, ("hot", 16_384))
        first = len(traffic)
        for each in range(240):
            traffic.ask(now + 10 + each / 8, ("hot", 16_384), (f"tail {each}", 100), answer=512)
        played = play(traffic, policy=policy, first=first)
        figures |= {
            f"{policy}.ttft_p50": played.ttft(0.5),
            f"{policy}.seconds_p50": played.seconds(0.5),
            f"{policy}.replicas": sum(count > 0 for count in played.asked()),
            f"{policy}.largest_share": max(share(played.asked(), each) for each in range(8)),
        }
    return figures


@scenario
def cold_burst() -> Figures:
    """100 prompts of 500 to 8,000 tokens that have nothing in common, within 10 ms."""
    figures: Figures = {}
    for policy in (DEFAULT, "round_robin"):
        dice, traffic = random.Random(3), Traffic()
        now = traffic.warm_up()
        first = len(traffic)
        for each in range(100):
            traffic.ask(now + each * 0.0001, (f"cold {each}", dice.randrange(500, 8000)), answer=64)
        played = play(traffic, policy=policy, first=first)
        computed = played.computed()
        figures |= {
            f"{policy}.most_over_least_computed": max(computed) / min(computed),
            f"{policy}.ttft_p50": played.ttft(0.5),
            f"{policy}.ttft_p95": played.ttft(0.95),
        }
    return figures


# One after the other


@scenario
def one_after_the_other() -> Figures:
    """20 conversations of 20 turns that nobody names, one request at a time, 2 replicas; without and behind a system prompt."""
    figures: Figures = {}
    for system in (0, 512):
        for policy in (DEFAULT, "session_sticky"):
            traffic = Traffic()
            for talk in range(20):
                texts = [("system", system)] if system else []
                for turn in range(20):
                    texts.append((f"talk {talk} {turn}", 200))
                    named = NO_SESSION if policy == DEFAULT else talk
                    traffic.ask(0.0, *texts, conversation=named, chain=0, pause=0.05)
            played = play(traffic, changed(replicas=2, closed_loop=True), policy)
            chosen = played.run.chosen
            figures |= {
                f"{policy}.{system}.moves": sum(chosen[at] != chosen[at - 1] for at in range(400) if at % 20),
                f"{policy}.{system}.largest_share": max(share(played.asked(), each) for each in range(2)),
                f"{policy}.{system}.hit": played.hit(),
                f"{policy}.{system}.ttft_p95": played.ttft(0.95),
            }
    return figures


def _behind(system: int) -> Figures:
    """Conversations of 6 turns behind one system prompt, 40 open at a time; each request comes when the last one has ended."""
    dice, traffic = random.Random(5), Traffic()
    texts: dict[int, list[tuple[str, int]]] = {}
    waiting, coming = list(range(40)), iter(range(40, 200))
    while waiting:
        talk = dice.choice(waiting)
        mine = texts.setdefault(talk, [("system", system)])
        mine.append((f"talk {talk} {len(mine)}", 256))
        traffic.ask(0.0, *mine, conversation=talk, chain=0, pause=0.05)
        if len(mine) == 7:
            waiting.remove(talk)
            waiting += [new for new in [next(coming, None)] if new is not None]
    figures: Figures = {}
    for policy in (DEFAULT, "session_sticky"):
        played = play(traffic, changed(blocks=1000, closed_loop=True), policy)
        figures[f"{policy}.hit"] = played.hit()
        figures[f"{policy}.replicas"] = sum(count > 0 for count in played.asked())
        figures[f"{policy}.ttft_p95"] = played.ttft(0.95)
    figures["endless_cache.hit"] = play(traffic, changed(replicas=1, blocks=200_000, closed_loop=True)).hit()
    return figures


@scenario
def behind_a_system_prompt() -> Figures:
    """The system prompt has 1,024 tokens, a cache 16,000: it does not hold the 40 conversations, and all 8 caches do."""
    return _behind(1024)


@scenario
def behind_a_long_system_prompt() -> Figures:
    """The same with 4,096 tokens: more than most conversations have of their own."""
    return _behind(4096)


# Replicas that are not like the others


@scenario
def newcomer() -> Figures:
    """The eighth replica comes after two minutes, empty."""
    played = play(talks(24, 200), changed(restarts=(Restart(0.5, 7, 119.5),)))
    late = played.those(150, 180)
    return {
        "share_of_computed_30_to_60": share(played.computed(late), 7),
        "share_of_requests_30_to_60": share(played.asked(late), 7),
        "ttft_p95_before": played.ttft(0.95, played.those(60, 120)),
        "ttft_p95_after": played.ttft(0.95, played.those(120, 180)),
    }


@scenario
def half_as_fast() -> Figures:
    """One replica is half as fast as the others, and nobody says so."""
    figures: Figures = {}
    traffic = talks(40, 60)
    for name, policy, knows in (("learned", DEFAULT, False), ("known", DEFAULT, True), ("round_robin",) * 2 + (False,)):
        played = play(traffic, changed(speeds=(0.5,), knows_speeds=knows), policy)
        late = played.those(20)
        figures[f"{name}.share"] = share(played.computed(late), 0)
        figures[f"{name}.ttft_p95"] = played.ttft(0.95, late)
    return figures


@scenario
def far_slower() -> Figures:
    """One replica is a hundred times slower than the others; 2 and 20 prompts a second that have nothing in common."""
    figures: Figures = {}
    for rate, seconds in ((2, 400), (20, 100)):
        dice, traffic = random.Random(3), Traffic()
        for each in range(rate * seconds):
            traffic.ask(each / rate, (f"alone {each}", int(500 * dice.uniform(0.3, 1.7))), answer=30)
        for name, fleet in (("slow", changed(speeds=(0.01,))), ("well", FLEET)):
            played = play(traffic, fleet)
            late = played.those(seconds / 5)
            figures[f"{rate}.{name}.part_of_requests"] = played.asked(late)[0] / len(late)
            figures[f"{rate}.{name}.ttft_p99"] = played.ttft(0.99, late)
    return figures


@scenario
def foreign_load() -> Figures:
    """From 60 to 100 s somebody else has one replica compute 4,000 tokens every 120 ms, more than it can."""
    foreign = [Foreign(0, 60, 100, 0.12, 4000)]
    played, even = play(talks(48, 160), foreign=foreign), play(talks(48, 80), policy="round_robin", foreign=foreign)
    return {
        "share_before": share(played.asked(played.those(30, 60)), 0),
        "sent_there": played.asked(played.those(60, 100))[0],
        "share_meanwhile": share(played.asked(played.those(70, 100)), 0),
        "share_30_to_60_after": share(played.asked(played.those(130, 160)), 0),
        "ttft_p95_before": played.ttft(0.95, played.those(30, 60)),
        "ttft_p95_first_10": played.ttft(0.95, played.those(60, 70)),
        "ttft_p95_meanwhile": played.ttft(0.95, played.those(70, 100)),
        "round_robin.ttft_p95_first_10": even.ttft(0.95, even.those(60, 70)),
    }


@scenario
def false_reports() -> Figures:
    """Caches are tight, and one of the engines says for ever that its own is empty, or full; or all say full."""
    figures: Figures = {}
    lies: dict[str, dict[int, float]] = {
        "honest": {},
        "empty": {0: 0.0},
        "full": {0: 1.0},
        "all_full": dict.fromkeys(range(8), 1.0),
    }
    for name, usage in lies.items():
        played = play(talks(40, 30, answer=400), changed(blocks=1500), usage=usage)
        late = played.those(15)
        figures[f"{name}.share"] = share(played.asked(late), 0)
        figures[f"{name}.ttft_p95"] = played.ttft(0.95, late)
    return figures


@scenario
def three_gateways() -> Figures:
    """The same load through one gateway, and through three that know nothing of each other."""
    figures: Figures = {}
    for gateways in (1, 3):
        played = play(talks(100, 40), changed(gateways=gateways))
        late = played.those(15, 40)
        seconds = [played.asked(played.those(at, at + 1)) for at in range(15, 40)]
        figures |= {
            f"{gateways}.ttft_p95": played.ttft(0.95, late),
            f"{gateways}.ttft_p99": played.ttft(0.99, late),
            f"{gateways}.hit": played.hit(late),
            f"{gateways}.largest_share_in_a_second": max(max(each) * 8 / sum(each) for each in seconds),
        }
    return figures


@scenario
def restart_of_a_hot_replica() -> Figures:
    """All prompts begin with the same 2,048 tokens; the replica that had most requests dies at 40 s, and is back at 50 s."""
    traffic = talks(60, 90, systems=1, system=2048)
    undisturbed = play(talks(60, 40, systems=1, system=2048))  # begins alike
    early = undisturbed.asked(undisturbed.those(0, 40))
    hot = early.index(max(early))
    played = play(traffic, changed(restarts=(Restart(40.0, hot, 10.0),)))
    return {
        "refused": sum(each == REFUSED for each in played.run.chosen),
        "ttft_p95_before": played.ttft(0.95, played.those(20, 40)),
        "ttft_p95_meanwhile": played.ttft(0.95, played.those(40, 50)),
        "ttft_max_meanwhile": played.ttft(1.0, played.those(40, 50)),
        "ttft_p95_after": played.ttft(0.95, played.those(50, 90)),
        "share_20_to_40_after": share(played.asked(played.those(70, 90)), hot),
    }


# Tenants, siblings


@scenario
def a_tenant_floods() -> Figures:
    """One tenant asks for 200 prompts of 4,000 tokens within 200 ms, another for one of 1,000 a second; 2 replicas."""
    traffic = Traffic()
    now = traffic.warm_up()
    asks = [(now + each * 0.001, f"flood {each}", 4000, "big") for each in range(200)]
    asks += [(now + 0.5 + each, f"small {each}", 1000, "small") for each in range(20)]
    for at, name, tokens, tenant in sorted(asks):
        traffic.ask(at, (name, tokens), answer=50, tenant=tenant)
    figures: Figures = {}
    for name, yields in (("yielding", True), ("not_yielding", False)):
        played = play(traffic, changed(replicas=2), yields=yields)
        of = {who: [at for at in played.those(now) if traffic.tenants[at] == who] for who in ("big", "small")}
        figures[f"{name}.small_ttft_max"] = played.ttft(1.0, of["small"])
        figures[f"{name}.big_ttft_p95"] = played.ttft(0.95, of["big"])
    return figures


def _bursts(played: Played, of: Sequence[Sequence[int]]) -> Figures:
    """Over bursts of siblings: on how many replicas one was, and how many times its prompt was computed."""
    everybody = [at for each in of for at in each]
    prompts = sum(played.run.inputs[each[0]] for each in of)
    return {
        "replicas": sum(len({played.run.chosen[at] for at in each}) for each in of) / len(of),
        "times_computed": sum(played.computed(everybody)) / prompts,
        "ttft_p95": played.ttft(0.95, everybody),
    }


@scenario
def siblings() -> Figures:
    """The same 6,016 tokens asked 8 times within 8 ms: of an idle fleet, of one that holds them, and of a busy one."""
    figures: Figures = {}
    for name, is_warm in (("idle", False), ("warm", True)):
        traffic = Traffic()
        now = traffic.warm_up()
        if is_warm:
            traffic.ask(now - 10, ("best", 6016))
        first = len(traffic)
        for each in range(8):
            traffic.ask(now + each * 0.001, ("best", 6016), answer=200)
        found = _bursts(play(traffic, first=first), [range(first, first + 8)])
        figures |= {f"{name}.{figure}": value for figure, value in found.items()}
    dice, traffic = random.Random(4), Traffic()
    asks = [(each / 40, f"other {each}", dice.randrange(500, 5000)) for each in range(800)]
    asks += [(12.0 + burst * 1.2 + each * 0.001, f"best {burst}", 6016) for burst in range(6) for each in range(8)]
    bursts: list[list[int]] = [[] for _ in range(6)]
    for at, (when, text, tokens) in enumerate(sorted(asks)):
        is_sibling = text.startswith("best")
        traffic.ask(when, (text, tokens), answer=200 if is_sibling else 20)
        if is_sibling:
            bursts[int(text.split()[1])].append(at)
    found = _bursts(play(traffic), bursts)
    return figures | {f"busy.{figure}": value for figure, value in found.items()}


@scenario
def sub_agents() -> Figures:
    """Each of 4 agents computes 6,016 tokens, and a second later 6 helpers of its own ask behind them at once."""
    figures: Figures = {}
    for policy in (DEFAULT, "round_robin"):
        traffic = Traffic()
        now = traffic.warm_up()
        families: list[list[int]] = []
        for agent in range(4):
            at = now + agent * 2.0
            traffic.ask(at, (f"agent {agent}", 6016), answer=64)
            families.append(list(range(len(traffic), len(traffic) + 6)))
            for each in range(6):
                traffic.ask(at + 1.0, (f"agent {agent}", 6016), (f"helper {agent} {each}", 512), answer=200)
        played = play(traffic, policy=policy)
        found = _bursts(played, families)
        figures |= {f"{policy}.{figure}": value for figure, value in found.items()}
    return figures
