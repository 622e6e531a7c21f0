"""``balancer/limits.py``: nobody gets more than a limit says, and everybody gets what it says."""

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer import limits
from balancer.errors import ConfigError, PromptTooLong, RateLimited
from balancer.limits import NO_RATES, Limiter, LimitSettings, Permit, Rates


def limiter(**settings: object) -> Limiter:
    return Limiter(LimitSettings(**settings))  # type: ignore[arg-type]


def enter(over: Limiter, now: float = 0.0, key: str = "k", tenant: str = "t", own: Rates = NO_RATES) -> Permit:
    return over.enter(key, tenant, own, now)


def refused(over: Limiter, now: float = 0.0, **who: str) -> RateLimited:
    with pytest.raises(RateLimited) as told:
        enter(over, now, **who)  # type: ignore[arg-type]
    return told.value


def test_nothing_is_limited_unless_it_is_asked_for() -> None:
    over = limiter()
    for _ in range(10_000):
        enter(over).spend(10**9, 0.0)
    assert over._accounts == {}


def test_a_minutes_worth_may_come_at_once_and_no_more() -> None:
    over = limiter(key=Rates(requests_per_minute=30))
    for _ in range(30):
        enter(over)
    error = refused(over)
    assert error.retry_after == 2
    assert error.limit == "key.requests_per_minute"
    assert error.message == "key 'k' may have 30 requests a minute (limits.key.requests_per_minute); try again in 2 s"
    enter(over, 2.0)
    refused(over, 2.0)


def test_one_request_in_many_minutes_can_be_a_limit() -> None:
    over = limiter(key=Rates(requests_per_minute=0.1))
    enter(over)
    assert refused(over, 60.0).retry_after == 540
    enter(over, 600.0)


def test_keys_do_not_share_but_their_tenant_does() -> None:
    over = limiter(key=Rates(requests_per_minute=2), tenant=Rates(requests_per_minute=3))
    for key in ("one", "one", "two"):
        enter(over, key=key)
    assert refused(over, key="one").limit == "key.requests_per_minute"
    assert refused(over, key="two").limit == "tenant.requests_per_minute"
    enter(over, key="two", tenant="other")


def test_what_is_refused_uses_nothing_up() -> None:
    over = limiter(key=Rates(requests_per_minute=2), tenant=Rates(concurrent_requests=1))
    first = enter(over)
    for _ in range(10):
        assert refused(over).limit == "tenant.concurrent_requests"
    first.leave()
    enter(over)
    assert refused(over, key="other").limit == "tenant.concurrent_requests"


def test_requests_at_a_time_end_once() -> None:
    over = limiter(key=Rates(concurrent_requests=2))
    first, second = enter(over), enter(over)
    error = refused(over)
    assert error.limit == "key.concurrent_requests"
    assert error.retry_after == 1
    first.leave()
    first.leave()
    enter(over)
    refused(over)
    second.leave()


def test_tokens_of_prompts_and_answers_count() -> None:
    over = limiter(key=Rates(tokens_per_minute=600))
    first = enter(over)
    first.spend(500, 0.0)
    second = enter(over)
    with pytest.raises(RateLimited, match=r"key 'k' may have 600 tokens a minute .* try again in 10 s"):
        second.spend(200, 0.0)
    second.spend(100, 0.0)
    first.charge(300)
    first.leave()
    with pytest.raises(RateLimited, match="try again in 31 s"):
        enter(over).spend(10, 0.0)
    enter(over).spend(10, 31.0)


def test_a_prompt_larger_than_a_minutes_worth_waits_for_a_full_one() -> None:
    over = limiter(key=Rates(tokens_per_minute=60))
    enter(over).spend(6_000, 0.0)
    with pytest.raises(RateLimited, match="try again in 5939 s"):
        enter(over).spend(0, 1.0)  # even a prompt without tokens waits until the debt is paid
    enter(over).spend(6_000, 6_000.0)


def test_own_limits_of_a_key_and_of_a_tenant_go_first() -> None:
    over = limiter(
        key=Rates(requests_per_minute=1, concurrent_requests=5),
        tenant=Rates(concurrent_requests=100),
        tenants={"t": Rates(concurrent_requests=7)},
    )
    own = Rates(requests_per_minute=100)
    for _ in range(5):
        enter(over, own=own)
    with pytest.raises(RateLimited) as told:
        enter(over, own=own)
    assert told.value.limit == "key.concurrent_requests"
    for key in ("x", "y"):
        enter(over, key=key)
    assert refused(over, key="z").limit == "tenant.concurrent_requests"


def test_limits_that_change_do_so_at_once() -> None:
    over = limiter()
    permits = [enter(over, own=Rates(requests_per_minute=60)) for _ in range(60)]
    with pytest.raises(RateLimited):
        enter(over, own=Rates(requests_per_minute=6_000))  # a new minute's worth is not given for it
    enter(over, 1.0, own=Rates(requests_per_minute=6_000))
    with pytest.raises(RateLimited):
        enter(over, 1.0, own=Rates(concurrent_requests=61))
    permits[0].leave()
    enter(over, 1.0, own=Rates(concurrent_requests=61))


def test_clients_without_keys_are_limited_together() -> None:
    over = limiter(key=Rates(concurrent_requests=1))
    enter(over, key="", tenant="")
    assert refused(over, key="", tenant="").message.startswith("clients without a key may have 1 requests at a time")


def test_accounts_of_keys_that_went_away_are_forgotten() -> None:
    over = limiter(key=Rates(requests_per_minute=60, tokens_per_minute=600))
    busy = enter(over, key="busy")
    for at in range(5_000):
        permit = enter(over, now=float(at), key=f"k{at}")
        permit.spend(10, float(at))
        permit.charge(5)
        permit.leave()
    assert len(over._accounts) < 1_000
    assert ("key", "busy") in over._accounts
    busy.leave()


def test_a_prompt_that_is_too_long_is_told_so() -> None:
    limits.check_prompt(100, LimitSettings(max_prompt_tokens=100))
    limits.check_prompt(10**9, LimitSettings())
    with pytest.raises(PromptTooLong, match=r"1,001 tokens, and the limit here is 1,000 \(limits.max_prompt_tokens\)"):
        limits.check_prompt(1_001, LimitSettings(max_prompt_tokens=1_000))


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (LimitSettings(max_prompt_tokens=0), "max_prompt_tokens"),
        (LimitSettings(max_nesting=-1), "max_nesting"),
        (LimitSettings(key=Rates(requests_per_minute=math.nan)), "key.requests_per_minute"),
        (LimitSettings(tenant=Rates(tokens_per_minute=math.inf)), "tenant.tokens_per_minute"),
        (LimitSettings(tenants={"acme": Rates(concurrent_requests=0)}), "tenants.acme.concurrent_requests"),
    ],
)
def test_settings_that_cannot_be_used_are_named(settings: LimitSettings, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^limits\.{name}: .* give a number above 0$"):
        limits.check(settings)


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(0, 40), st.integers(0, 40)), max_size=80))
def test_over_any_time_no_more_passes_than_the_limits_say(steps: list[tuple[float, int, int]]) -> None:
    """Besides one minute's worth at the beginning, and the answer of the last one that was let in."""
    over = limiter(key=Rates(requests_per_minute=20, tokens_per_minute=120))
    now, entered, spent, last = 0.0, 0, 0, 0
    for seconds, prompt, answer in steps:
        now += seconds
        with contextlib.suppress(RateLimited):
            permit = enter(over, now)
            entered += 1
            permit.spend(prompt, now)
            permit.charge(answer)
            permit.leave()
            spent, last = spent + prompt + answer, answer
        assert entered <= 20 + now * 20 / 60 + 1e-6
        assert spent - last <= 120 + now * 120 / 60 + 1e-6


@given(st.floats(0.01, 1_000), st.integers(1, 50))
def test_who_waits_as_long_as_told_is_let_in(per_minute: float, tries: int) -> None:
    over, now = limiter(key=Rates(requests_per_minute=per_minute)), 0.0
    for _ in range(tries):
        try:
            enter(over, now)
        except RateLimited as error:
            now += error.retry_after or math.nan
            enter(over, now)


def test_shares_are_equal_and_nobody_is_shut_out() -> None:
    whole = Rates(requests_per_minute=9, tokens_per_minute=90, concurrent_requests=7)
    assert whole.share(2) == Rates(requests_per_minute=4.5, tokens_per_minute=45, concurrent_requests=3)
    assert whole.share(8).concurrent_requests == 1
    assert whole.share(1) is whole
    assert NO_RATES.share(3) is NO_RATES
    settings = LimitSettings(max_prompt_tokens=5, key=whole, tenants={"t": whole}).share(3)
    assert (settings.max_prompt_tokens, settings.tenant) == (5, NO_RATES)
    assert settings.key == settings.tenants["t"] == whole.share(3)


def test_what_others_let_in_counts_and_overdraws_nothing() -> None:
    over = limiter(key=Rates(requests_per_minute=2, tokens_per_minute=60, concurrent_requests=2))
    permits = [over.hold("k", "t", NO_RATES, 0.0) for _ in range(5)]
    permits[0].note(10**6, 0.0)
    assert over.at_work == 5
    assert refused(over).limit == "key.concurrent_requests"
    for permit in permits:
        permit.leave()
    assert over.at_work == 0
    assert refused(over).retry_after == 30, "empty, and not below"
    enter(over, 30.0).spend(30, 30.0)
    assert limiter().hold("k", "t", NO_RATES, 0.0) is limits.NO_PERMIT


def test_what_is_noted_is_taken_from_what_has_come_meanwhile() -> None:
    over = limiter(key=Rates(tokens_per_minute=60))
    permit = enter(over)
    permit.spend(60, 0.0)
    permit.note(20, 30.0)
    permit.spend(10, 30.0)
    with pytest.raises(RateLimited):
        permit.spend(1, 30.0)
    permit.charge(20)
    permit.note(5, 30.0)
    with pytest.raises(RateLimited) as told:
        permit.spend(1, 30.0)
    assert told.value.retry_after == 21, "what was overdrawn stays so"


def test_where_a_share_holds_is_said() -> None:
    over = Limiter(LimitSettings(key=Rates(concurrent_requests=1)), " at each of 2 gateways")
    enter(over)
    assert (
        "may have 1 requests at a time at each of 2 gateways (limits.key.concurrent_requests)" in refused(over).message
    )
