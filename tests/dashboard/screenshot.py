"""Takes deploy/dashboard.png: the console page of a server under load.

Needs chromium, fonts-liberation for letters as most readers have them, and pngquant, which makes
the picture a third as large.

    ATTND_SERVER=build/server/attnd-server .venv/bin/python tests/dashboard/screenshot.py
"""

import argparse
import pathlib
import shutil
import subprocess
import tempfile
import time

import console
from load import Load
from stack import DEPLOY, Stack


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=int, default=5, help="of load; the charts show as much")
    parser.add_argument("--out", type=pathlib.Path, default=DEPLOY / "dashboard.png")
    options = parser.parse_args()
    assert console.browser() and shutil.which("pngquant"), (
        "something is missing: apt-get install chromium fonts-liberation pngquant"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        with Stack(folder) as stack, Load(stack.server.target):
            time.sleep(60 * options.minutes)
            url = f"{stack.prometheus.url}/consoles/attnd.html?minutes={options.minutes}"
            picture = folder / "dashboard.png"
            console.render(url, folder / "profile", picture)
        command = ["pngquant", "--force", "--output", options.out, "256", picture]
        subprocess.run(command, check=True)
    print(f"{options.out}: {options.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
