"""What a report is made from, and where it may be written."""

import shutil
from dataclasses import dataclass, replace

import numpy as np
import pytest

import eigenlens as el
from eigenlens import EigenlensError
from eigenlens.passes.facts import Facts
from eigenlens.reports.contents import contents_of
from eigenlens.reports.gather import gather
from eigenlens.reports.kinds import ON_PAGE
from eigenlens.reports.parts import PagePart
from eigenlens.reports.results import Kind, PageView, Results


def test_a_folder_of_folders_stands_for_all_of_them(mini):
    found = gather([mini.folder])
    for kind in (el.Study, el.Plan, el.Evaluation, el.Collapse):
        assert len(found.of(kind)) == 1
    assert len(found.all) == 4
    np.testing.assert_array_equal(
        found.of(el.Study)[0].spectra.spectra[0].held_out, mini.study.spectra.spectra[0].held_out
    )


def test_what_is_given_twice_is_shown_once(tiny, monkeypatch):
    monkeypatch.chdir(tiny.folder)
    found = gather(["study", tiny.folder / "study", tiny.folder, "./plan/../study"])
    assert [len(found.of(el.Study)), len(found.of(el.Plan))] == [1, 1]


def test_an_object_given_twice_is_shown_once(tiny):
    assert gather([tiny.study, tiny.plan, tiny.study]).all == [tiny.study, tiny.plan]


def test_an_object_and_its_folder_are_one(tiny):
    assert len(gather([tiny.study, tiny.folder / "study"]).of(el.Study)) == 1


def test_a_comparison_stands_for_its_studies(tiny, tmp_path):
    shutil.copytree(tiny.folder / "study", tmp_path / "other")
    other = el.Study.open(tmp_path / "other")
    assert gather([el.compare(tiny.study, other)]).of(el.Study) == [tiny.study, other]


def test_folders_and_objects_in_the_order_they_are_given(tiny, mini):
    found = gather([mini.folder / "study", tiny.study])
    assert [study.name for study in found.of(el.Study)] == [mini.study.name, tiny.study.name]


@pytest.mark.parametrize("name", ["no such", "empty", "foreign", "file.txt"])
def test_folders_without_results_are_refused_by_name(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "foreign" / "inside").mkdir(parents=True)
    (tmp_path / "foreign" / "config.json").write_text("{}")
    (tmp_path / "file.txt").write_text("x")
    with pytest.raises(EigenlensError, match=name):
        gather([tmp_path / name])


def test_an_unfinished_study_is_named_as_such(tmp_path):
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "unfinished.json").write_text("{}")
    with pytest.raises(EigenlensError, match=r"interrupted|unfinished|not finished"):
        gather([folder])


def test_nothing_is_refused():
    with pytest.raises(EigenlensError, match="nothing to report"):
        gather([])


@pytest.mark.parametrize("thing", [3, None, {"study": 1}])
def test_other_things_are_refused(thing):
    with pytest.raises(EigenlensError, match="a report shows studies"):
        gather([thing])


@dataclass
class Weather:
    """A result of a kind that there is not."""

    facts: Facts
    sentence: str = "It rains."


def weather_parts(page, weather, number):
    yield "diagnostics", [PagePart(f"weather{number}", "The weather", [weather.sentence])]


WEATHER = Kind(
    "weather",
    Weather,
    "a forecast",
    "forecasts",
    PageView(weather_parts, lambda page, weather: [("Outside", weather.sentence)], 0),
)


def test_a_new_kind_takes_one_entry(tiny):
    results = Results((*ON_PAGE, WEATHER))
    for result in (Weather(tiny.study.facts), tiny.study, tiny.plan):
        results.add(result)
    assert [type(result) for result in results.all] == [el.Study, el.Plan, Weather]
    contents = contents_of(results, None, lambda done: None)
    assert "weather0" in [part.key for part in contents.parts]
    assert contents.summary[0] == ("Outside", "It rains.")
    assert [facts["result"] for facts in contents.facts] == ["study", "plan", "weather"]
    with pytest.raises(EigenlensError, match="collapse runs, explanations and forecasts, not 3"):
        results.add(3)


def test_parts_without_a_section_are_noticed(tiny):
    def lost(page, weather, number):
        yield "nowhere", [PagePart("weather", "The weather", [])]

    kind = replace(WEATHER, view=PageView(lost, lambda page, weather: [], 0))
    results = Results((*ON_PAGE, kind))
    results.add(Weather(tiny.study.facts))
    with pytest.raises(KeyError, match="nowhere"):
        contents_of(results, None, lambda done: None)


def test_a_damaged_study_is_refused(tiny, tmp_path):
    shutil.copytree(tiny.folder / "study", tmp_path / "study")
    (tmp_path / "study" / "study.json").write_text("{not json")
    with pytest.raises(EigenlensError):
        gather([tmp_path / "study"])


def test_a_folder_is_no_place_for_a_page(tiny, tmp_path):
    with pytest.raises(EigenlensError, match="is a folder"):
        el.report(tiny.study, output=tmp_path)


def test_a_file_that_is_no_report_is_kept(tiny, tmp_path):
    place = tmp_path / "notes.html"
    place.write_text("<p>mine</p>")
    with pytest.raises(EigenlensError, match=r"notes\.html exists"):
        el.report(tiny.study, output=place)
    assert place.read_text() == "<p>mine</p>"
    assert el.report(tiny.study, output=place, overwrite=True) == place
    assert "<p>mine</p>" not in place.read_text(encoding="utf-8")


def test_a_report_is_written_anew(tiny, tmp_path):
    place = el.report(tiny.study, output=tmp_path / "page.html", title="first")
    assert "<bdi>first</bdi>" in place.read_text(encoding="utf-8")
    el.report(tiny.study, output=place, title="second")
    assert "<bdi>second</bdi>" in place.read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_a_place_that_cannot_be_written_is_refused(tiny, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(EigenlensError):
        el.report(tiny.study, output=tmp_path / "file" / "page.html")
