"""The index alone, as a service for routers that are not kvlb."""
