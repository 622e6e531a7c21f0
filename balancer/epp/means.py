"""What every pick of an endpoint picker works with.

Knows values. Never does anything.
"""

import asyncio

import msgspec

from balancer.brain import Brain
from balancer.disaggregation.plan import Connector
from balancer.epp.places import Places
from balancer.epp.settings import EppSettings
from balancer.gateway.access import Access
from balancer.gateway.intake import Intake
from balancer.observer import Observer
from balancer.request_counts import RequestCounts


class Means(msgspec.Struct, frozen=True):
    """``expose`` says whether clients are told of decisions."""

    service: Brain
    counts: RequestCounts
    access: Access
    observer: Observer
    intake: Intake
    places: Places
    connector: Connector
    settings: EppSettings
    loop: asyncio.AbstractEventLoop
    expose: bool
