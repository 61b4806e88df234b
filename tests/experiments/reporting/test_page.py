"""Pages: every text escaped, nothing from elsewhere, and tables where plots cannot be drawn."""

from __future__ import annotations

import sys

import pytest

from superdl.experiments.reporting import Bars, Column, Page, Series, Table
from tests.fixtures.pages import read_page

EVIL = "<script>alert('x')</script> & \"quoted\""


def test_every_text_is_escaped_wherever_it_stands():
    page = Page(EVIL, EVIL)
    page.heading(EVIL)
    page.paragraph(EVIL)
    page.note(EVIL)
    page.small(EVIL)
    page.points([(EVIL, EVIL)])
    page.facts(EVIL, {EVIL: EVIL})
    page.listing(EVIL, EVIL)
    page.table(Table(EVIL, (Column(EVIL, EVIL), Column("b")), ((EVIL, EVIL),)))
    page.plot(EVIL, [Bars(EVIL, EVIL, (EVIL,), (Series(EVIL, (1.0,)), Series("b", (2.0,))))])
    read = read_page(page.html())
    assert "script" not in read.tags
    # title, h1, subtitle, heading, paragraph, note, small; 2 points, 3 facts, 2 listing, 5 table, the plot's
    # caption, for its own letters are shapes
    assert read.text.count("<script>alert('x')</script>") == 20


def test_a_page_is_well_formed_and_needs_nothing_else():
    page = Page("a title")
    for _ in range(2):
        page.heading("the same heading")
        page.plot("a plot", [Bars("bars", "images/s", ("a", "b"), (Series("x", (1.0, None)),))])
    read = read_page(page.html())
    assert read.title == "a title"
    assert read.headings == ["the same heading"] * 2
    assert read.figures == ["a plot"] * 2
    assert read.loads == []
    assert len(set(read.ids)) == len(read.ids)


def test_a_table_says_its_units_and_what_is_absent():
    columns = (Column("pass", words=True), Column("speed", "images/s"))
    page = Page("t")
    page.table(Table("speeds", columns, (("1 train", "1,200"), ("1 val", "-")), total=True))
    (table,) = read_page(page.html()).tables
    assert table.caption == "speeds"
    assert table.head == ["pass", "speedimages/s"]
    assert table.rows == [["1 train", "1,200"], ["1 val", "-"]]
    assert 'class="absent">-' in page.html()
    assert '<tr class="total"><th scope="row" class="words">1 val' in page.html()


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="speeds: 1 cells under 2 columns"):
        Table("speeds", (Column("a"), Column("b")), (("1",),))


def test_without_matplotlib_the_page_says_so_once_and_has_its_tables(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    page = Page("t")
    for _ in range(2):
        page.plot("a plot", [Bars("bars", "images/s", ("a",), (Series("x", (1.0,)),))])
    page.facts("facts", {"a": "b"})
    read = read_page(page.html())
    assert read.figures == []
    assert read.text.count("pip install 'superdl[train]'") == 1
    assert read.tables[0].rows == [["a", "b"]]


def test_writing_replaces_the_whole_and_takes_names_that_are_no_text(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("x" * 100_000)
    Page("a name of a file \udcff").write(path)
    assert "a name of a file \\udcff" in read_page(path.read_text()).title
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]
