"""The endpoints there are, and a watcher at work for each.

Knows lists of endpoints and tasks. Never knows what a watcher finds, or what becomes of an endpoint that has left: that is for
whoever is told. Between calls: there is exactly one watcher for each endpoint of the last list.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping

from balancer.health import Watcher
from balancer.settings import ReplicaSettings


class Targets:
    """Watches endpoints from ``begin`` to ``stop``. Changes with ``set``.

    ``make`` makes a watcher; ``came`` is called for each endpoint that is new, or is to be watched otherwise, and ``left`` for
    each that is no longer there. ``replaced`` is called, before ``came``, where another engine is known to be behind the same
    URL than before; ``is_held`` says of an endpoint that has left whether anything is still known of it.
    """

    def __init__(
        self,
        make: Callable[[ReplicaSettings], Watcher],
        came: Callable[[str], None],
        left: Callable[[str], None],
        replaced: Callable[[str], None],
        is_held: Callable[[str], bool],
    ) -> None:
        self.watchers: dict[str, Watcher] = {}
        self._make = make
        self._came = came
        self._left = left
        self._replaced = replaced
        self._is_held = is_held
        self._lives: dict[str, str] = {}  # of all that are there, or have left and are not done
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._has_begun = False

    def __repr__(self) -> str:
        return f"<Targets {len(self.watchers)} endpoints>"

    def set(self, replicas: Iterable[ReplicaSettings], lives: Mapping[str, str] | None = None) -> None:
        """These are all endpoints from now on. Whoever is among them as before is watched on.

        ``lives`` names who is behind a URL, where that is known.
        """
        wanted = {replica.url: replica for replica in replicas}
        lives = lives or {}
        for url in self.watchers.keys() - wanted.keys():
            self._end(url)
            del self.watchers[url]
            self._left(url)
        for url, replica in wanted.items():
            known = self.watchers.get(url)
            was, life = self._lives.get(url), lives.get(url)
            is_another = was is not None and life is not None and was != life
            if known is not None and known.replica == replica and not is_another:
                continue
            self._end(url)
            if is_another:
                self._replaced(url)
            self.watchers[url] = self._make(replica)
            self._came(url)
            if self._has_begun:
                self._watch(url)
        kept = {url: life for url, life in self._lives.items() if url in wanted or self._is_held(url)}
        self._lives = {**kept, **lives}

    def begin(self) -> None:
        """Look at them from now on."""
        self._has_begun = True
        for url in self.watchers:
            self._watch(url)

    async def stop(self) -> None:
        """Look no more."""
        for url in list(self._tasks):
            self._end(url)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _watch(self, url: str) -> None:
        self._tasks[url] = asyncio.create_task(self.watchers[url].run())

    def _end(self, url: str) -> None:
        task = self._tasks.pop(url, None)
        if task is not None:
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
