"""Plots as files: SVG as they are, PNG by a renderer that is an extra.

Knows a folder, and that ``resvg-py`` makes pixels. Never knows what the plots show.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from balancer.errors import ConfigError
from simulations.report.plots import Plot
from simulations.report.svg import standalone

ZOOM: Final = 2
"""Pixels for one of the drawing's, so that it is sharp on paper and on fine screens."""

FORMATS: Final = ("svg", "png")


def write_plots(plots: Sequence[Plot], folder: Path, formats: Sequence[str] = ("svg",)) -> list[Path]:
    """Writes each plot in each format and says where; makes the folder.

    Raises:
        ConfigError: the folder cannot be made or written to; or pixels are wanted and ``resvg-py`` is not installed: then
            nothing was written.
    """
    unknown = sorted(set(formats) - set(FORMATS))
    if unknown:
        raise ConfigError(f"--plots: '{unknown[0]}' is no format; there are {' and '.join(FORMATS)}")
    render = _renderer() if "png" in formats else None
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for plot in plots:
            drawing = standalone(plot.svg)
            if "svg" in formats:
                written.append(folder / f"{plot.key}.svg")
                written[-1].write_text(drawing, encoding="utf-8")
            if render is not None:
                written.append(folder / f"{plot.key}.png")
                written[-1].write_bytes(render(drawing))
    except OSError as error:
        raise ConfigError(
            f"--plots: cannot write to '{folder}' ({error.strerror}); name a folder that can be written to"
        ) from None
    return written


def _renderer() -> Callable[[str], bytes]:
    try:
        import resvg_py  # noqa: PLC0415 - optional
    except ImportError:
        raise ConfigError("--plots: PNG needs a renderer; pip install 'kvlb[plots]', or ask for svg alone") from None
    return lambda drawing: bytes(resvg_py.svg_to_bytes(svg_string=drawing, zoom=ZOOM))
