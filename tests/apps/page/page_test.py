#!/usr/bin/env python3
"""The page in a headless Chromium, against a server that plays scripts. Arguments: the folder of the page, names of tests."""
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import page_case  # noqa: E402
import webdriver  # noqa: E402

if __name__ == "__main__":
    if webdriver.missing():
        print(f"skipped: {webdriver.missing()} is not installed (Debian: chromium, chromium-driver)")
        sys.exit(77)
    page_case.begin(sys.argv[1])
    try:
        names = sys.argv[2:] or ["streams_test", "errors_test", "controls_test", "looks_test"]
        tests = unittest.defaultTestLoader.loadTestsFromNames(names)
        passed = unittest.TextTestRunner(verbosity=1).run(tests).wasSuccessful()
    finally:
        page_case.end()
    sys.exit(0 if passed else 1)
