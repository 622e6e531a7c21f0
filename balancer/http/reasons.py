"""Why a connection failed, in words for an operator.

Knows what the system, asyncio and aiohttp raise. Never knows who was asked: whoever tells of it names the address.
"""

import os
import ssl

import aiohttp


def reason(error: Exception) -> str:
    """A few words without an address, such as ``connection refused``."""
    match error:
        case aiohttp.ClientConnectorDNSError():
            return "its name cannot be resolved"
        case aiohttp.ClientConnectorCertificateError():
            return f"its certificate cannot be trusted: {error.certificate_error}"
        case ssl.SSLError() | aiohttp.ClientSSLError():
            return f"no TLS connection: {getattr(error, 'reason', None) or getattr(error, 'os_error', error)}"
        case aiohttp.ServerDisconnectedError():
            return "the connection was closed without an answer"
        case TimeoutError():
            return "no answer in time"
        case aiohttp.ClientResponseError():
            return f"its answer is no HTTP: {error.message}"
        case OSError() if error.errno is not None and error.errno > 0:
            return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__
