"""Pods and EndpointSlices as the API writes them, as far as they say who can be sent requests.

Knows core/v1 and discovery.k8s.io/v1. Never knows what becomes of them: a Pod is usable or not by its own words alone, and so
is an address of a slice.
"""

from typing import Final

import msgspec

from balancer.discovery.objects import Object

SERVICE_LABEL: Final = "kubernetes.io/service-name"
"""What an EndpointSlice names its Service with."""


class _Port(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    container_port: int = 0


class _Container(msgspec.Struct, frozen=True):
    ports: list[_Port] | None = None


class _PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None  # sidecars are among them


class _Condition(msgspec.Struct, frozen=True):
    type: str = ""
    status: str = ""


class _PodIp(msgspec.Struct, frozen=True):
    ip: str = ""


class _PodStatus(msgspec.Struct, frozen=True):
    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: list[_PodIp] | None = msgspec.field(default=None, name="podIPs")
    conditions: list[_Condition] | None = None


class Pod(Object, frozen=True, kw_only=True):
    """A Pod, as far as it says whether and where requests can be sent to it."""

    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()

    @property
    def is_usable(self) -> bool:
        """Whether it runs, is ready, and nobody has asked for its end."""
        is_ready = any(each.type == "Ready" and each.status == "True" for each in self.status.conditions or ())
        return is_ready and self.status.phase == "Running" and self.metadata.deletion_timestamp is None

    @property
    def unusable(self) -> str | None:
        """Why nothing can be sent to it now, for people; None where it can."""
        if self.metadata.deletion_timestamp is not None:
            return "terminating"
        if self.status.phase != "Running":
            return self.status.phase or "no phase"
        if not self.is_usable:
            return "not Ready"
        return None if self.address else "no address"

    @property
    def address(self) -> str:
        """Its first one: that of the cluster's own family where it has two; empty before it has any."""
        return self.status.pod_ip or next((each.ip for each in self.status.pod_ips or () if each.ip), "")

    def word(self, name: str) -> str | None:
        """What it says by an annotation or, without that, by a label."""
        for told in (self.metadata.annotations, self.metadata.labels):
            if told is not None and name in told:
                return told[name].strip()
        return None

    def port(self, name: str) -> int | None:
        """The port that one of its containers has under this name."""
        containers = (*(self.spec.containers or ()), *(self.spec.init_containers or ()))
        named = (port for each in containers for port in each.ports or () if port.name == name)
        return next((port.container_port for port in named), None)


class _Conditions(msgspec.Struct, frozen=True):
    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class _Target(msgspec.Struct, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""


class _SliceEndpoint(msgspec.Struct, frozen=True, rename="camel"):
    addresses: list[str] | None = None
    conditions: _Conditions | None = None
    target_ref: _Target | None = None

    @property
    def is_usable(self) -> bool:
        """As the API reads its conditions: one that is not told is good.

        ``serving`` tells of readiness also where the Service publishes addresses that are not ready.
        """
        told = self.conditions or _Conditions()
        return told.ready is not False and told.serving is not False and told.terminating is not True


class _SlicePort(msgspec.Struct, frozen=True):
    name: str | None = None
    port: int | None = None


class Slice(Object, frozen=True, kw_only=True, rename="camel"):
    """An EndpointSlice: some of the addresses of a Service, of one family. An address may be in several for a while."""

    address_type: str = "IPv4"
    endpoints: list[_SliceEndpoint] | None = None
    ports: list[_SlicePort] | None = None
