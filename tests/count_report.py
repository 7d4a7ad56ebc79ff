"""Prints `passed failed skipped` of a JUnit XML report (GoogleTest's or pytest's)."""

import sys
import xml.etree.ElementTree as ElementTree

cases = list(ElementTree.parse(sys.argv[1]).getroot().iter("testcase"))
if not cases:
    sys.exit("no test cases in the report")
failed = sum(1 for c in cases if c.find("failure") is not None or c.find("error") is not None)
skipped = sum(
    1 for c in cases if c.find("skipped") is not None or c.get("result") in ("skipped", "suppressed")
)
print(len(cases) - failed - skipped, failed, skipped)
