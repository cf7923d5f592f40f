"""The API against its own description: schemathesis makes requests from /openapi.json, right and wrong ones, always the same.
No server error, no status, type or form of an answer that is not described. CASES in the environment: how many at
least; most come from walking along the borders of the description, some hundred per operation by dice that fall alike."""
import json
import os
import pathlib
import subprocess
import sys
import unittest

import bed

CASES = int(os.environ.get("CASES", "2000"))
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
COMMAND = f"""
import sys
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
from fence import stay_on_this_machine
stay_on_this_machine(fatal=True)
from schemathesis.cli import schemathesis
schemathesis()
"""


class Described(unittest.TestCase):
    def test_description(self):
        folder = pathlib.Path(bed.FOLDER.name)
        (folder / "slots").mkdir()
        # Little room, so that requests without a limit end soon.
        with bed.tiny_server("-n", "24", "--parallel", "2", "--slot-save-path", str(folder / "slots"), context=192) as server:
            description = server.get("/openapi.json")
            methods = {"get", "post", "put", "delete", "patch"}
            operations = sum(len(methods & set(path)) for path in description["paths"].values())
            report, source = folder / "report.json", folder / "openapi.json"
            source.write_text(json.dumps(description))  # by its address that path itself would be left out
            done = subprocess.run(
                [sys.executable, "-c", COMMAND, "run", str(source), "--url", server.url, "--checks", CHECKS, "--generation-deterministic",
                 "--max-examples", str(max(10, CASES // 20)), "--phases", "examples,coverage,fuzzing", "--continue-on-failure",
                 "--no-shrink", "--request-timeout", "120", "--no-color", "--warnings", "off", "--report", "json",
                 "--report-json-path", str(report)],
                cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            self.assertTrue(report.exists(), done.stdout)
            figures = json.loads(report.read_text())
            self.assertEqual((done.returncode, figures["failures"], figures["errors"]), (0, [], []), done.stdout)
            self.assertTrue(figures["complete"])
            self.assertEqual(figures["operations"]["tested"], operations)
            generated = figures["test_cases"]["generated"]
            self.assertEqual(figures["test_cases"]["without_checks"], 0)
            self.assertGreaterEqual(generated, CASES)
            server.wait_until_idle()
            print(f"{generated} cases over {operations} operations")


if __name__ == "__main__":
    bed.main()
