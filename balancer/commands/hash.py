"""``kvlb hash``: token ids on standard input -> the block hashes that a vLLM engine gives them.

Knows the flags and how token ids may be written. Never knows how a hash is made (``hashing``). One line a full block: the
digest in hex, two spaces, and the integer that KV events carry.
"""

import argparse
import re
import sys
from typing import Literal, cast

import msgspec

from balancer.commands import Command
from balancer.errors import ConfigError
from hashing.chain import continue_chain
from hashing.errors import RecipeError, UnhashableError
from hashing.external import key_of
from hashing.extras import Extras, Lora
from hashing.recipes import Algorithm, Recipe

_HINT = "give a JSON list of integers such as [1, 2, 3], or integers separated by spaces or commas"
_SEPARATORS = re.compile(r"[\s,]+")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Prints the block hashes that vLLM computes for the token ids on standard input, one line for each full block: "
        "the digest in hex, and the 64-bit integer that KV events carry."
    )
    parser.add_argument(
        "--algorithm",
        default="sha256",
        help="the engine's --prefix-caching-hash-algo: sha256, sha256_cbor, xxhash or xxhash_cbor (default: sha256)",
    )
    parser.add_argument("--block-size", default="16", metavar="N", help="the engine's --block-size (default: 16)")
    parser.add_argument("--seed", metavar="S", help="the engine's PYTHONHASHSEED, if it is set")
    parser.add_argument("--salt", metavar="S", help="the request's cache_salt")
    parser.add_argument(
        "--lora", metavar="NAME=PATH", help="the adapter: its name, and `root` of its entry in GET /v1/models"
    )
    parser.add_argument(
        "--form",
        default="tagged",
        help="how salt and adapter enter the hash: tagged (vLLM >= 0.31) or untagged (0.11.1 - 0.30; NAME is enough)",
    )


def run(args: argparse.Namespace) -> int:
    """Print one line for each full block; a prompt without one gets a remark on standard error.

    Raises:
        ConfigError: a flag, or what stands on standard input.
    """
    tokens = parse_tokens(_read_input())
    try:
        recipe = recipe_of(args)
        extras = Extras(lora=lora_of(args.lora), salt=args.salt)
        digests = continue_chain(recipe, recipe.none_hash(), tokens, extras)
    except (RecipeError, UnhashableError) as error:
        raise ConfigError(str(error)) from None
    if args.form == "untagged" and args.seed is None and recipe.algorithm.startswith("sha256"):
        print("kvlb hash: before vLLM 0.30 this holds only with PYTHONHASHSEED; name it with --seed", file=sys.stderr)
    if not digests:
        print(f"kvlb hash: {len(tokens)} tokens fill no block of {recipe.block_size}", file=sys.stderr)
    for digest in digests:
        print(f"{digest.hex()}  {key_of(digest)}")
    return 0


def _read_input() -> bytes:
    if sys.stdin is None:  # what Python makes of a descriptor that is closed
        raise ConfigError(f"tokens: standard input is closed; {_HINT}")
    try:
        return sys.stdin.buffer.read()
    except OSError as error:
        raise ConfigError(f"tokens: standard input cannot be read: {error.strerror}; {_HINT}") from None


def recipe_of(args: argparse.Namespace) -> Recipe:
    """The recipe that the flags describe.

    Raises:
        ConfigError: a flag's text cannot be read.
        RecipeError: its value cannot be used.
    """
    if not re.fullmatch(r"[0-9]{1,9}", args.block_size):
        raise ConfigError(f"--block-size: {args.block_size!r} is not a number of tokens; give one such as 16")
    if args.form not in ("tagged", "untagged"):
        raise ConfigError(f"--form: {args.form!r} is unknown; use tagged or untagged")
    is_tagged = args.form == "tagged"
    salt_form: Literal["tagged", "plain"] = "tagged" if is_tagged else "plain"
    return Recipe(
        algorithm=cast(Algorithm, args.algorithm),  # Recipe refuses what vLLM does not have
        block_size=int(args.block_size),
        seed=args.seed,
        lora_form="tagged" if is_tagged else "name",
        multimodal_form="tagged" if is_tagged else "offset",
        salt_form=salt_form,
        embeds_form=salt_form,
    )


def lora_of(flag: str | None) -> Lora | None:
    """The adapter named by ``--lora NAME=PATH`` (or NAME alone).

    Raises:
        ConfigError: the name is empty.
    """
    if flag is None:
        return None
    name, _, path = flag.partition("=")
    if not name:
        raise ConfigError(f"--lora: {flag!r} has no name; give NAME=PATH")
    return Lora(name, path or None)


def parse_tokens(text: bytes) -> list[int]:
    """Token ids as a JSON list, or as integers separated by whitespace or commas.

    Raises:
        ConfigError: neither.
    """
    text = text.strip()
    if not text:
        raise ConfigError(f"tokens: standard input is empty; {_HINT}")
    try:
        if text.startswith(b"["):
            return msgspec.json.decode(text, type=list[int])
        return [_token(item) for item in _SEPARATORS.split(text.decode()) if item]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"tokens: {error}; {_HINT}") from None


def _token(item: str) -> int:
    # Twenty digits hold every 64-bit integer; Python refuses to read thousands of them.
    if not re.fullmatch(r"[0-9]{1,20}", item):
        shown = item if len(item) <= 20 else item[:20] + "…"
        raise ConfigError(f"tokens: {shown!r} is not a token id; {_HINT}")
    return int(item)


command = Command(
    name="hash",
    help="print the block hashes that vLLM computes for token ids",
    configure=configure,
    run=run,
)
