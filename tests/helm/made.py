"""What is made of other files in helm/: ``python -m tests.helm.made`` (``scripts/chart``) writes it, ``--check`` compares."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.helm import dashboard, readme, schema

HELM: Final = Path(__file__).parents[2] / "helm"

FILES: Final[dict[str, Callable[[], str]]] = {
    "README.md": readme.text,
    "values.schema.json": schema.text,
    "dashboards/kvlb.json": dashboard.text,
}


def out_of_date() -> list[str]:
    """Names of files that are not what would be written now."""
    return [name for name, text in FILES.items() if not (HELM / name).is_file() or (HELM / name).read_text() != text()]


def main(words: list[str]) -> int:
    old = out_of_date()
    if words == ["--check"]:
        if old:
            print(f"helm/: out of date: {', '.join(old)}; run scripts/chart", file=sys.stderr)
        return int(bool(old))
    for name in old:
        (HELM / name).parent.mkdir(exist_ok=True)
        (HELM / name).write_text(FILES[name]())
        print(f"helm/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
