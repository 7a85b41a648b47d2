"""Charts on disk.

Both kinds of each, and a sentence where the package that draws them is missing.
"""

import sys
from xml.etree import ElementTree

import altair as alt
import pytest
from PIL import Image

from eigenlens import EigenlensError
from eigenlens.run.charts import save_charts


@pytest.fixture
def chart():
    return alt.Chart(alt.Data(values=[{"x": 1, "y": 2}])).mark_point().encode(x="x:Q", y="y:Q")


def test_every_chart_is_saved_as_png_and_svg(chart, tmp_path):
    written = save_charts({"a": chart, "b": chart}, tmp_path / "pictures", only_png=["b"])
    assert [path.name for path in written] == ["a.png", "a.svg", "b.png"]
    assert Image.open(written[0]).format == "PNG"
    assert ElementTree.parse(written[1]).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_without_the_package_that_draws_a_sentence_says_how_to_install_it(
    chart, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(
        EigenlensError, match=r"not installed; install it with: pip install vl-convert-python$"
    ):
        save_charts({"a": chart}, tmp_path / "pictures")
    assert not (tmp_path / "pictures").exists()
