import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from balancer.errors import ConfigError
from simulations.report.export import write_plots
from simulations.report.plots import plots_of
from tests.support.runs import report, result

PLOTS = plots_of(report(result(), result("round_robin")))


def test_each_plot_is_a_file(tmp_path: Path) -> None:
    written = write_plots(PLOTS, tmp_path / "new" / "folder")
    assert [path.name for path in written] == [f"{plot.key}.svg" for plot in PLOTS]
    for path in written:
        assert ET.parse(path).getroot().get("width")


def test_pixels_are_made_by_the_extra(tmp_path: Path) -> None:
    pytest.importorskip("resvg_py")
    written = write_plots(PLOTS[:1], tmp_path, ["svg", "png"])
    assert [path.suffix for path in written] == [".svg", ".png"]
    data = written[1].read_bytes()
    assert data.startswith(b"\x89PNG")
    assert int.from_bytes(data[16:20], "big") == 1240


def test_without_the_extra_the_remedy_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(ConfigError, match=r"pip install 'kvlb\[plots\]'"):
        write_plots(PLOTS, tmp_path / "none", ["svg", "png"])
    assert not (tmp_path / "none").exists()
    assert len(write_plots(PLOTS, tmp_path)) == len(PLOTS)


def test_folders_that_cannot_be_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--plots: cannot write to"):
        write_plots(PLOTS, tmp_path / "file")


def test_other_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'gif' is no format; there are svg and png"):
        write_plots(PLOTS, tmp_path, ["gif"])
