"""``hashing/lmcache.py``: hashes that LMCache 0.5.6 has made beside vLLM 0.32.0."""

from hashing.lmcache import chunk_hashes

TOKENS = list(range(1, 201))


def test_hashes_are_lmcaches() -> None:
    assert [f"{each:x}" for each in chunk_hashes(TOKENS, 64)] == [
        "515e1715a7ed837c",
        "ba6eb9c4699d8cfc",
        "3685d9879f471add",
    ]
    assert [f"{each:x}" for each in chunk_hashes(TOKENS, 64, "0")] == [
        "305f1bca45617a36",
        "5d99b2d2375ffca9",
        "672481d234cfb9f7",
    ]


def test_only_full_chunks_have_one() -> None:
    assert chunk_hashes(TOKENS[:63], 64) == []
    assert len(chunk_hashes(TOKENS[:64], 64)) == 1
    assert chunk_hashes(TOKENS[:128], 64) == chunk_hashes(TOKENS, 64)[:2]
