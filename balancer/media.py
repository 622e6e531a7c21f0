"""Where images, videos and sounds lie in a prompt, as vLLM's ``features`` tell it.

Knows the shape of ``features`` in render answers and in ``/inference/v1/generate`` bodies (vLLM 0.32, ``MultiModalFeatures``).
Never knows tokens or hashes. What is not told, or told in another shape, ends what can be known of the prompt's blocks: before
its first placeholder, if that can be read.
"""

from typing import Annotated, Any, Final

import msgspec

from hashing.extras import MultimodalItem

MAX_ITEMS: Final = 1_024
"""Of one prompt; each is looked at for every few blocks. Models take a few hundred pictures at most."""


class Media(msgspec.Struct, frozen=True):
    """The items of one prompt. ``known_tokens`` lead the prompt and have hashes that can be known; None means all of them."""

    items: tuple[MultimodalItem, ...] = ()
    known_tokens: int | None = None


NO_MEDIA: Final = Media()
UNKNOWN_MEDIA: Final = Media(known_tokens=0)


class _Placeholder(msgspec.Struct):
    offset: Annotated[int, msgspec.Meta(ge=0)]
    length: Annotated[int, msgspec.Meta(ge=1)]


class _Features(msgspec.Struct):
    mm_placeholders: dict[str, list[_Placeholder]]
    mm_hashes: Any = None


_features = msgspec.json.Decoder(_Features | None)


def read_features(raw: msgspec.Raw | bytes) -> Media:
    """What the JSON of ``features`` says; null says that there are none."""
    try:
        features = _features.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return UNKNOWN_MEDIA
    if features is None:
        return NO_MEDIA
    places = [
        (modality, at, each) for modality, all_ in features.mm_placeholders.items() for at, each in enumerate(all_)
    ]
    items = [_item(features.mm_hashes, *place) for place in places]
    named = tuple(item for item in items if item is not None)
    if len(named) < len(items) or len(items) > MAX_ITEMS or _count(features.mm_hashes) != len(items):
        return Media(known_tokens=min((each.offset for _, _, each in places), default=0))
    return Media(tuple(sorted(named, key=lambda item: item.offset)))


def _item(hashes: Any, modality: str, at: int, place: _Placeholder) -> MultimodalItem | None:
    try:
        identifier = hashes[modality][at]
    except (TypeError, LookupError):
        return None
    is_name = isinstance(identifier, str) and identifier
    return MultimodalItem(identifier, place.offset, place.length) if is_name else None


def _count(hashes: Any) -> int:
    """How many items are named; -1 where that cannot be said."""
    if hashes is None:
        return 0
    if not isinstance(hashes, dict) or not all(isinstance(each, list) for each in hashes.values()):
        return -1
    return sum(map(len, hashes.values()))
