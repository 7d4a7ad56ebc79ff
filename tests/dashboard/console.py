"""The console page as a browser without a window sees it."""

import dataclasses
import html.parser
import shutil
import subprocess

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# The whole page with one server and three methods.
WIDTH, HEIGHT = 1280, 1820


def browser():
    """Path of a Chromium; None where there is none."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def render(url, folder, picture):
    """Writes the picture (PNG) of the page at `url`; returns the page after its scripts ran."""
    command = [
        browser(),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={folder}",
        f"--window-size={WIDTH},{HEIGHT}",
        # Time in the page stands still while it waits for the network.
        "--virtual-time-budget=10000",
        f"--screenshot={picture}",
        "--dump-dom",
        url,
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0 and picture.exists(), run.stderr[-4000:]
    return run.stdout


@dataclasses.dataclass
class Shown:
    """An element that carries an expression, and the text that it shows."""

    expression: str
    value: str | None
    text: str = ""


class Page(html.parser.HTMLParser):
    """shown: numbers of tiles, tables and bars. figures: of each chart its expressions, the number
    of lines it draws and its legend. text: all that a reader sees."""

    def __init__(self, source):
        super().__init__()
        self.shown, self.figures, self.attributes = [], [], {}
        self.text = ""
        self._stack = []
        self.feed(source)

    def handle_starttag(self, tag, attributes):
        having = dict(attributes)
        element = None
        if tag == "body":
            self.attributes = having
        if tag == "figure":
            element = {"expressions": [], "lines": 0, "legend": "", "class": having["class"]}
            self.figures.append(element)
        elif tag == "data":
            self.figures[-1]["expressions"].append(having["data-expr"])
        elif tag == "path" and self.figures:
            self.figures[-1]["lines"] += 1
        elif "data-expr" in having:
            element = Shown(having["data-expr"], having.get("data-value"))
            self.shown.append(element)
        if tag not in ("meta", "link", "br"):
            self._stack.append((tag, having.get("class"), element))

    def handle_endtag(self, tag):
        while self._stack and self._stack.pop()[0] != tag:
            pass

    def handle_data(self, data):
        if any(tag in ("script", "style") for tag, *_ in self._stack):
            return
        self.text += data
        inside = [element for _, _, element in self._stack if element is not None]
        if inside and isinstance(inside[-1], Shown):
            inside[-1].text += data
        elif inside and any(kind == "legend" for _, kind, _ in self._stack):
            inside[-1]["legend"] += data
