"""The site builds without a warning, asks no network for anything, and every page of it is found."""

import re
from html.parser import HTMLParser

import pytest

from builder.check import broken_links, missing_pages
from builder.navigation import as_toml, listed, navigation
from builder.pages import turn_links
from docs.pages import DOCS, ROOT, text, text_of

OUTSIDE = ("README", "CONTRIBUTING", "RELEASING", "SECURITY", "CHANGELOG")


def test_the_site_builds_without_a_warning(site):
    assert site.code == 0, site.message
    assert not re.search(r"warning|error", site.message, re.IGNORECASE), site.message


class Loaded(HTMLParser):
    """What a browser fetches for a page."""

    def __init__(self):
        super().__init__()
        self.places = []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag in {"script", "img", "iframe", "source", "video", "audio", "embed"}:
            self.places.append(given.get("src"))
        if tag == "link" and given.get("rel") not in {"canonical", "next", "prev"}:
            self.places.append(given.get("href"))


def test_no_page_asks_the_network_for_anything(site):
    assert len(site.pages) > 15
    for name, html in site.pages.items():
        loaded = Loaded()
        loaded.feed(html)
        assert loaded.places, name
        for place in filter(None, loaded.places):
            assert not re.match(r"(https?:)?//", place), f"{name} loads {place}"
            if not place.startswith("data:"):
                # the page for lost links is absolute
                base = site.folder if place.startswith("/") else (site.folder / name).parent
                assert (base / place.partition("?")[0].lstrip("/")).exists(), (
                    f"{name} loads {place}, which is not there"
                )
    for style in site.folder.rglob("*.css"):
        assert not re.search(r"""(?:url\(|@import)\s*["']?(?:https?:)?//""", style.read_text()), (
            style
        )


def test_formulas_are_drawn(site):
    html = site.pages["concepts/index.html"]
    formulas = len(re.findall(r"\$\$.+?\$\$|\$[^$\n]+\$", text("concepts/index.md"), re.DOTALL))
    assert html.count("<math ") == formulas > 50
    assert "$" not in text_of(html) and "\\frac" not in html


def test_every_page_has_a_title_of_its_own_and_is_in_the_navigation(site):
    titles = list(site.titles.values())
    assert len(set(titles)) == len(titles) > 60
    shown = re.findall(
        r'<a href="([^"#]+)" class="md-nav__link[^"]*">(.*?)</a>',
        site.pages["security.html"],
        re.DOTALL,
    )
    listed_there = {place.removeprefix("./"): text_of(words) for place, words in shown}
    assert listed_there == site.titles


@pytest.mark.parametrize("folder", ["start", "guides", "concepts", "reference", "developing"])
def test_a_page_begins_with_what_the_reader_will_be_able_to_do(folder):
    for path in (DOCS / folder).rglob("*.md"):
        title, empty, first = path.read_text(encoding="utf-8").splitlines()[:3]
        assert title.startswith("# ") and not empty, path
        assert re.match(r"After this page you|Here you find", first), f"{path}: {first}"


SEARCH = """async titles => {
  const config = JSON.parse(document.getElementById("__config").textContent);
  await new Promise(done => {
    const script = document.createElement("script");
    Object.assign(script, {src: "search.js", onload: done});
    document.head.append(script);
  });
  const worker = new Worker(config.search);
  const ask = message => new Promise(done => {
    worker.onmessage = event => done(event.data.data);
    worker.postMessage(message);
  });
  await ask({type: 0, data: __index});
  const all = {type: "operator", data: {operator: "and", operands: []}};
  const tags = {input: [{type: "term", data: {field: "tags"}}]};
  const found = {};
  for (const input of titles) {
    const answer = await ask({type: 2, data: {input, filter: {input: all, aggregation: tags}}});
    found[input] = answer.items.map(item => __index.items[item.id].location);
  }
  return found;
}"""


def test_a_search_for_the_title_of_a_page_finds_it(site, browser):
    """By the site's own search, in a page that was opened as a file."""
    page = browser.new_page()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((site.folder / "index.html").as_uri())
    found = page.evaluate(SEARCH, list(site.titles.values()))
    for place, title in site.titles.items():
        pages = list(dict.fromkeys(found_at.partition("#")[0] for found_at in found[title]))
        assert place in pages[:3], f"{title}: {pages[:5]}"
    page.keyboard.press("Control+k")
    page.get_by_role("combobox").fill("Files that eigenlens writes")
    page.locator("a[href$='reference/files.html']", has_text="Files that").last.wait_for()
    assert all(place.startswith(("file:", "data:", "about:", "blob:")) for place in asked)
    page.close()


def test_links_lead_somewhere_on_github_too():
    """From file to file of the repository.

    That those of the site do is for the build to say.
    """
    files = [
        *(path for name in OUTSIDE if (path := ROOT / f"{name}.md").exists()),
        *(ROOT / "benchmarks").glob("*.md"),
        *DOCS.rglob("*.md"),
    ]
    for file in files:
        for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", file.read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:", target):
                assert (file.parent / target).exists(), (
                    f"{file.relative_to(ROOT)} links to {target}"
                )


def test_the_check_of_the_build_finds_what_is_wrong(tmp_path):
    (tmp_path / "a.html").write_text('<h1 id="top"></h1><a href="b.html#here">b</a>')
    (tmp_path / "b.html").write_text(
        '<p id="here"></p><a href="a.html#there"></a><img src="c.png">'
    )
    assert broken_links(tmp_path) == [
        "b.html links to a.html#there, which is not there",
        "b.html links to c.png, which is not there",
    ]
    nav = {"Start": ["a.md", "a.md", {"More": ["gone.md"]}]}
    assert missing_pages(["a.md", "b.md"], nav) == [
        "b.md is not in the navigation",
        "the navigation names gone.md, which is not there",
        "the navigation names a.md twice",
    ]
    assert as_toml(nav) == '[{"Start" = ["a.md", "a.md", {"More" = ["gone.md"]}]}]'


def test_pages_of_the_root_are_there_if_the_repository_has_them():
    for pages in ([], ["contributing.md", "releasing.md"]):
        shown = listed(navigation(pages))
        assert ("contributing.md" in shown) is ("releasing.md" in shown) is bool(pages)
        assert "security.md" in shown


def test_links_between_files_become_links_between_pages():
    sources = {"security.md": "SECURITY.md", "guides/a.md": "docs/guides/a.md"}
    markdown = "[s](../../SECURITY.md#how) [p](../pictures/p.png) [w](https://example.org)"
    assert turn_links(markdown, "guides/a.md", sources) == (
        "[s](../security.md#how) [p](../pictures/p.png) [w](https://example.org)"
    )
    assert turn_links("[a](docs/guides/a.md)", "security.md", sources) == "[a](guides/a.md)"
