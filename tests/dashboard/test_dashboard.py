"""The Grafana dashboard is well formed, and every expression of it returns data under load."""

import collections
import itertools
import math
import re

import pytest

from expressions import ALL, DASHBOARD, OF_DEVICES, PANELS, VARIABLES, as_grafana, names, targets

UNITS = {
    "bytes", "Bps", "celsius", "flops", "percentunit", "reqps", "s", "short",
    "si:tok/s", "suffix: batches/s", "suffix: cores", "watt",
}  # fmt: skip
TITLES = [panel["title"] for panel in PANELS]


def test_names_and_ids_are_unique():
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    assert not [title for title, n in collections.Counter(TITLES).items() if n > 1]
    assert DASHBOARD["uid"] == "attnd"


def test_panels_fill_the_grid_without_overlap():
    cells = collections.Counter()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        columns, rows = range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])
        assert columns[-1] < 24, panel["title"]
        cells.update(itertools.product(columns, rows))
    assert not [cell for cell, n in cells.items() if n > 1]
    height = 1 + max(row for _, row in cells)
    assert len(cells) == 24 * height, "the grid has holes"


@pytest.mark.parametrize("panel", PANELS, ids=TITLES)
def test_panel_says_what_it_shows(panel):
    source = {"type": "prometheus", "uid": "${datasource}"}
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    assert len(panel["description"]) > 30
    assert panel["datasource"] == source
    assert panel["targets"]
    references = [target["refId"] for target in panel["targets"]]
    assert len(set(references)) == len(references)
    for target in panel["targets"]:
        assert target["datasource"] == source
        used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
        assert used <= set(VARIABLES), target["expr"]
        # A rate over a fixed window would be wrong at most zoom levels.
        windows = re.findall(r"\[([^\]]*)\]", target["expr"])
        assert set(windows) <= {"$__rate_interval"}, target["expr"]


def test_every_variable_narrows_something():
    text = " ".join(itertools.chain.from_iterable(map(targets, PANELS)))
    assert not [name for name in VARIABLES if name != "datasource" and f"${name}" not in text]


def test_what_is_achieved_counts_the_seconds_of_a_batch_once():
    """They were counted once for each of its requests: FLOP/s fell as batches grew."""
    (panel,) = [panel for panel in PANELS if panel["title"] == "Achieved FLOP/s by method"]
    for target in targets(panel):
        assert names(target) == {"attnd_flops_total", "attnd_batch_compute_seconds_total"}


def test_variables_list_what_the_server_has(prometheus):
    values = {}
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] != "query":
            continue
        found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
        series = as_grafana(found[1], ALL)
        data = prometheus.api(f"label/{found[2]}/values", **{"match[]": series})
        values[variable["name"]] = set(data)
    assert values["job"] == {"attnd"}
    assert len(values["instance"]) == 1
    assert values["method"] >= {"softmax", "local", "linear_attention"}
    assert values["direction"] == {"forward", "backward"}


@pytest.mark.parametrize("panel", PANELS, ids=TITLES)
def test_panel_has_data(prometheus, panel):
    for target in targets(panel):
        check(prometheus, as_grafana(target, ALL))


def test_panels_have_data_for_a_selection(prometheus):
    (build, _), *_ = prometheus.query("attnd_build_info")
    selection = {
        "job": "attnd",
        "instance": re.escape(build["instance"]).replace("\\", "\\\\"),
        "method": "(local|softmax)",
        "direction": "(backward)",
    }
    for target in itertools.chain.from_iterable(map(targets, PANELS)):
        result = check(prometheus, as_grafana(target, selection))
        methods = {labels["method"] for labels, _ in result if "method" in labels}
        assert methods <= {"local", "softmax"}, target


def check(prometheus, expression):
    """The result, which must be there and finite."""
    result = prometheus.query(expression)
    if names(expression) <= OF_DEVICES:
        return result
    assert result, f"no data: {expression}"
    odd = [(labels, value) for labels, value in result if not math.isfinite(value)]
    assert not odd, f"{expression}: {odd}"
    return result
