"""The console page, in a real browser, shows the numbers that Prometheus answers."""

import itertools
import math
import re
import struct

import pytest

import console
from expressions import names

ATTEMPTS = 4
PREFIXES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


@pytest.fixture(scope="module")
def rendered(prometheus, tmp_path_factory):
    """The page and the path of its picture, taken when Prometheus had the same data.

    If a scrape is under way when the page is made, the page lacks its samples and a later query
    includes them: the two differ, and the page is taken again.
    """
    if console.browser() is None:
        pytest.skip("no chromium")
    folder = tmp_path_factory.mktemp("console")
    for _ in range(ATTEMPTS):
        picture = folder / "console.png"
        url = prometheus.url + "/consoles/attnd.html?minutes=5"
        page = console.Page(console.render(url, folder / "profile", picture))
        wrong = [shown for shown in page.shown if not is_answer(prometheus, page, shown)]
        if not wrong:
            break
    return page, picture, wrong


def is_answer(prometheus, page, shown):
    result = prometheus.query(shown.expression, time=page.attributes["data-time"])
    if shown.value is None or len(result) != 1:
        return False
    return math.isclose(float(shown.value), result[0][1], rel_tol=1e-9, abs_tol=1e-12)


def test_numbers_are_those_of_prometheus(rendered):
    page, _, wrong = rendered
    # 8 tiles; 6 methods and directions with 7 and 8 cells and a bar of 4; a server with 11.
    assert len(page.shown) == 8 + 6 * (7 + 8 + 4) + 11
    assert not wrong


def test_text_says_the_numbers(rendered):
    page, *_ = rendered
    for shown in page.shown:
        if shown.text:
            assert math.isclose(
                read(shown.text), float(shown.value), rel_tol=0.006, abs_tol=1e-9
            ), shown


def test_every_chart_draws_what_prometheus_has(rendered, prometheus):
    page, *_ = rendered
    assert len(page.figures) == 13
    for figure in page.figures:
        expressions = [
            expression.replace("$window", "60s").replace("$step", "5s")
            for expression in figure["expressions"]
        ]
        series = itertools.chain.from_iterable(map(prometheus.query, expressions))
        assert figure["class"] == "drawn", figure
        assert figure["lines"] >= len(expressions)
        assert figure["lines"] <= len(list(series)) + 1, "at most one just came or went"
        assert re.search(r"\w [\d.]+", figure["legend"]), figure


def test_no_error_and_no_gap(rendered):
    page, *_ = rendered
    for word in ("NaN", "error", "undefined", "Infinity", "no data", "–", "<no value>"):
        assert word not in page.text, word
    assert "No alert is firing" in page.text or re.search(r"Attnd\w+", page.text)


def test_names_are_those_of_the_server(rendered, stack):
    page, *_ = rendered
    shown = [one.expression for one in page.shown]
    shown += itertools.chain.from_iterable(figure["expressions"] for figure in page.figures)
    served = set(re.findall(r"^# TYPE (\S+)", stack.server.metrics(), re.M))
    assert set().union(*map(names, shown)) <= served


def test_picture_has_the_size_of_the_window(rendered):
    _, picture, _ = rendered
    data = picture.read_bytes()
    assert struct.unpack(">II", data[16:24]) == (console.WIDTH, console.HEIGHT)
    assert 50_000 < len(data) < 400_000, "an empty page is small"


def read(text):
    """The value behind '984M FLOP/s', '64MiB', '55.5ms', '1m 3s' or '0.82%'."""
    if duration := re.fullmatch(r"(?:(\d+)d )?(?:(\d+)h )?(\d+)m (\d+)s", text.strip()):
        days, hours, minutes, seconds = (int(part or 0) for part in duration.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    number, prefix, binary, unit = re.match(
        r"(-?[\d.]+(?:e-\d+)?)\s*([numkMGT]?)(i?)(.*)", text.strip()
    ).groups()
    if unit.startswith("%"):
        return float(number) / 100
    if binary:
        return float(number) * 1024 ** (1 + "kMGT".index(prefix))
    return float(number) * PREFIXES[prefix]
