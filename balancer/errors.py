"""The tree of errors that kvlb raises on purpose.

Knows which HTTP status and OpenAI error type each has when it reaches a client. Never raised for our own mistakes: those are
asserts. Errors of libraries are translated into these at the edge, in one place each.

    BalancerError
    |-- ConfigError        a setting, a flag or a file; start-up ends with exit code 2
    |-- Unreachable        who was to be asked does not answer; the command ends with exit code 3
    `-- RequestError       reaches the client as an OpenAI error object
        |-- BadRequest         400  the body cannot be used as it is
        |-- PromptTooLong      400
        |-- Unauthorized       401  no key, or one that nobody has (with WWW-Authenticate)
        |-- Forbidden          403  the key is not for this
        |-- BodyTooLarge       413
        |-- UnknownEncoding    415
        |-- HeadTooLarge       431
        |-- UnknownModel       404
        |-- UnknownInstance    404  nothing of this name is registered
        |-- UnknownPath        404
        |-- Conflict           409  the place is taken
        |-- RateLimited        429  this key or tenant has had its share (with Retry-After)
        |-- Saturated          429  every replica is busy, and nobody else may wait for one (with Retry-After)
        |-- Contended          429  those that serve this ask for a rest (with Retry-After)
        |-- NoReplica          503  nothing can serve this now (with Retry-After)
        |-- NoBrain            503  who knows this is being replaced (with Retry-After)
        |-- UpstreamFailed     502  the replica broke off before its first byte, and no other one was left
        `-- UpstreamTimeout    504
"""

from typing import ClassVar


class BalancerError(Exception):
    """Base of all errors raised by kvlb on purpose; ``exit_code`` is that of a command that ends with it."""

    exit_code: ClassVar[int] = 1


class ConfigError(BalancerError):
    """A setting cannot be used; the message names its path and the remedy."""

    exit_code = 2


class Unreachable(BalancerError):
    """Who was to be asked does not answer, or is somebody else; the message says who and what to look at."""

    exit_code = 3


class RequestError(BalancerError):
    """Base of what a client is told; ``param`` names the field of the body that is at fault."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "internal_error"
    code: ClassVar[str | None] = None
    plain: ClassVar[str | None] = None
    """What is said instead to clients that may not know the fleet, where the message names replicas."""

    def __init__(self, message: str, *, param: str | None = None, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after

    def without_names(self) -> "RequestError":
        """The same error, as clients may know it that may not know the fleet."""
        return self if self.plain is None else type(self)(self.plain, param=self.param, retry_after=self.retry_after)


class BadRequest(RequestError):
    status = 400
    type = "invalid_request_error"


class PromptTooLong(RequestError):
    status = 400
    type = "invalid_request_error"
    code = "context_length_exceeded"


class Unauthorized(RequestError):
    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


class Forbidden(RequestError):
    status = 403
    type = "invalid_request_error"
    code = "not_allowed"


class BodyTooLarge(RequestError):
    status = 413
    type = "invalid_request_error"
    code = "body_too_large"


class UnknownEncoding(RequestError):
    status = 415
    type = "invalid_request_error"
    code = "unknown_encoding"


class HeadTooLarge(RequestError):
    status = 431
    type = "invalid_request_error"
    code = "head_too_large"


class UnknownModel(RequestError):
    status = 404
    type = "invalid_request_error"
    code = "model_not_found"


class UnknownInstance(RequestError):
    status = 404
    type = "invalid_request_error"
    code = "unknown_instance"


class Conflict(RequestError):
    status = 409
    type = "invalid_request_error"
    code = "conflict"


class UnknownPath(RequestError):
    status = 404
    type = "invalid_request_error"
    code = "unknown_path"


class RateLimited(RequestError):
    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"

    def __init__(
        self, message: str, *, limit: str = "", param: str | None = None, retry_after: int | None = None
    ) -> None:
        """``limit`` is the name of the setting without its section."""
        super().__init__(message, param=param, retry_after=retry_after)
        self.limit = limit


class Saturated(RequestError):
    status = 429
    type = "rate_limit_error"
    code = "saturated"


class Contended(RequestError):
    status = 429
    type = "rate_limit_error"
    code = "capacity_contended"


class NoReplica(RequestError):
    status = 503
    type = "service_unavailable_error"
    code = "no_replica"


class NoBrain(RequestError):
    status = 503
    type = "service_unavailable_error"
    code = "no_brain"


class UpstreamFailed(RequestError):
    status = 502
    type = "upstream_error"
    code = "replica_failed"
    plain = "the replica broke off, or cannot be reached"


class UpstreamTimeout(RequestError):
    status = 504
    type = "upstream_error"
    code = "replica_timeout"
    plain = "the replica did not answer in time"
