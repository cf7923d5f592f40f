#!/usr/bin/env python3
"""The program under mpirun: the bytes of one process, and an end in time when a rank is killed, stopped or cut off.

  mpi_test.py PROGRAM GOLDEN_FOLDER bits|presets|faults|server|nccl [--times N]
"""
import argparse
import contextlib
import http.client
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

MPI = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
END_WITHIN = 10  # seconds after a rank is lost
LEAST_BYTES = 100_000  # that ranks exchange before a network is closed; those that watch each other send four a second
SKIP = 77
CONTEXT = 65536  # of a server, so that a request can run for long
EVERY_TOKEN = {"temperature": 2, "top_k": 0, "top_p": 1, "min_p": 0}
SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent
MODELS = ["llama", "qwen3", "olmo2", "cohere2", "mixtral", "gpt-oss"]
# Every logit counts: a token is the largest of all with noise.
SAMPLED = ["--temp", "3", "--top-k", "0", "--top-p", "1", "--min-p", "0"]
TEXT = "one two three one two three one two"
GRAMMAR = r"""root ::= "[" item{8} "]"
item ::= [a-f0-9 ]{4} "," | "\"" [a-z]{3} "\"" ":" """
SCHEMA = {"type": "object", "required": ["a", "b", "c"], "additionalProperties": False, "properties": {
    "a": {"type": "integer", "minimum": 100, "maximum": 99999}, "b": {"enum": ["red", "green", "blue"]},
    "c": {"type": "array", "items": {"type": "boolean"}, "minItems": 3, "maxItems": 5}}}


def environment(folder):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMIX_", "SPECEXTEND_"))}
    env |= {"SPECEXTEND_CACHE": "off", "HOME": folder, "TMPDIR": folder,
            "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
            "OMPI_MCA_btl_base_warn_component_unused": "0"}
    return env


def generate(program, model, *more, device="cpu"):
    return [program, "generate", "-m", str(model), "-t", "1", "--device", device, "-p", TEXT, "--special", "-q",
            "--ignore-eos", *more]


def mpirun(ranks, command):
    return ["mpirun", "-n", str(ranks), *MPI, *command]


def run(command, env, timeout=120):
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout)
    return done.returncode, done.stdout, done.stderr.decode(errors="replace")


def tokens_of(output):
    try:
        return json.loads(output)["tokens"]
    except (ValueError, KeyError):
        return None


def check_bits(program, golden, env):
    failed = compared = 0
    distinct = set()
    cases = {"off": ["--spec", "off"], "sampled": ["--spec", "off", *SAMPLED, "--seed", "3"], "suffix": ["--spec", "suffix"],
             "self": ["--spec", "self-skip", *SAMPLED, "--seed", "5"],
             "grammar": ["--grammar", GRAMMAR, "--spec", "suffix", *SAMPLED, "--seed", "13"]}
    for at, name in enumerate(MODELS):
        for number, (case, flags) in enumerate(cases.items()):
            flags = ["--json", "-n", "40", "-c", "128", *flags]
            code, one, errors = run(generate(program, golden / name, *flags), env)
            one = tokens_of(one)
            if code != 0 or not one or "--seed" in flags and len(set(one)) < 10:
                print(f"{name} {case}: one process failed, or its text shows little: {one} {errors}")
                failed += 1
                continue
            distinct.update(one)
            # Every model and case meets both splits, and 1, 2 and 3 ranks take turns.
            for half, split in enumerate(("layers", "columns")):
                ranks = 1 + (at + number + half) % 3
                code, many, errors = run(mpirun(ranks, generate(program, golden / name, "--split", split, *flags)), env)
                compared += 1
                many = tokens_of(many)
                if code != 0 or many != one:
                    print(f"{name} {case}, {ranks} ranks by {split}: status {code}, {many!r} instead of {one!r}\n{errors}")
                    failed += 1
    model = golden / MODELS[0]
    # Several devices of one process need no mpirun.
    flags = ["-n", "40", "-c", "128", *SAMPLED, "--seed", "3"]
    _, one, _ = run(generate(program, model, *flags), env)
    for devices, more in (("cpu,cpu", []), ("cpu,cpu,cpu", ["--split", "columns"])):
        command = [devices if word == "cpu" else word for word in generate(program, model, *flags, *more)]
        code, many, errors = run(command, env)
        compared += 1
        if code != 0 or not one or many != one:
            print(f"--device {devices}: status {code}, {many!r} instead of {one!r}\n{errors}")
            failed += 1
    code, _, errors = run(generate(program, model, "--split", "columns", "-n", "2"), env)
    if code == 0 or "mpirun" not in errors:
        print(f"--split without mpirun: status {code}, {errors}")
        failed += 1
    code, _, errors = run(mpirun(2, generate(program, golden / "nothing", "--split", "columns", "-n", "2")), env)
    if code == 0 or "no such file" not in errors:
        print(f"a model that is not there: status {code}, {errors}")
        failed += 1
    mixed = mpirun(1, generate(program, model, "--split", "columns", "-n", "2"))
    mixed += [":", "-n", "1", *generate(program, model, "--split", "layers", "-n", "2")]
    code, _, errors = run(mixed, env)
    if code == 0 or "is not what rank 0 is" not in errors:
        print(f"ranks that disagree: status {code}, {errors}")
        failed += 1
    isa = mpirun(1, generate(program, model, "--split", "columns", "-n", "2"))
    isa += [":", "-n", "1", "-x", "SPECEXTEND_ISA=generic", *generate(program, model, "--split", "columns", "-n", "2")]
    code, _, errors = run(isa, env)
    if code == 0 or "bits could differ" not in errors:
        print(f"ranks of different instruction sets: status {code}, {errors}")
        failed += 1
    # One that all have makes them alike.
    alike = generate(program, model, "-n", "20", "-c", "128", "--isa", "generic", *SAMPLED, "--seed", "3")
    isa = mpirun(1, [*alike, "--split", "columns"])
    isa += [":", "-n", "1", "-x", "SPECEXTEND_ISA=generic", *alike, "--split", "columns"]
    _, one, _ = run(alike, env)
    code, many, errors = run(isa, env)
    compared += 1
    if code != 0 or not one or many != one:
        print(f"ranks with --isa generic: status {code}, {many!r} instead of {one!r}\n{errors}")
        failed += 1
    print(f"{compared} comparisons of texts of {len(distinct)} different tokens, {failed} failed")
    return failed


def default_model():
    script = SOURCE / "tools/fetch_model.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else "-"


def check_presets(program, golden, cases, numbers, which, env):
    """Every family, every drafter, cache and rule, and the default model: one start of mpirun runs them all."""
    failed = 0
    library = pathlib.Path(program).resolve().parent.parent / "src/comm/libspecextend_mpi.so"
    env = env | {"SPECEXTEND_MPI_LIBRARY": str(library), "SPECEXTEND_MODELS": str(SOURCE / "models")}
    model = default_model()
    if model == "-":
        print("the default model is not here, and left out")
    for ranks in numbers:
        for split in ("layers", "columns"):
            code, said, errors = run(mpirun(ranks, [cases, split, which, str(golden), model]), env, timeout=1500)
            print(said.decode(errors="replace").strip())
            if code != 0 or b" 0 failed" not in said:
                print(f"{ranks} ranks by {split}: status {code}\n{errors}")
                failed += 1
    return failed


def end(job, pids):
    """Nothing of a job stays, however it went."""
    for pid in pids.values():
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    if job.poll() is None:
        job.kill()
        job.wait()


def health_of(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return None, ""


@contextlib.contextmanager
def serving(program, golden, env, ranks=1, split=None, device="cpu"):
    """A server that answers, on that many ranks: its job, port, and the processes of the ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program, "serve", "-m", str(golden / "qwen3"), "-t", "1", "--device", device, "--host", "127.0.0.1", "--port",
               str(port), "-c", str(CONTEXT)]
    if split:
        command = [*command, "--split", split]
        command = mpirun(ranks, command) if device == "cpu" else mpirun_as_machines(ranks, command)
    with tempfile.TemporaryFile() as errors:
        job = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
        pids = {}
        try:
            deadline = time.monotonic() + 60
            while health_of(port)[0] != 200 and time.monotonic() < deadline and job.poll() is None:
                time.sleep(0.05)
            pids = ranks_of(job.pid) if split else {0: job.pid}
            yield job, port, pids
        finally:
            end(job, pids)
            errors.seek(0)
            print(errors.read().decode(errors="replace"), file=sys.stderr)


def ask(port, body, timeout=30):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", data=json.dumps({"prompt": TEXT, **body}).encode())
    return urllib.request.urlopen(request, timeout=timeout)


def answers_of(port):
    """What the server answers: greedily, sampled, by a grammar and by a schema; texts with the probabilities of their tokens."""
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    answers = []
    for more in ({"temperature": 0, "ignore_eos": True}, {**EVERY_TOKEN, "seed": 3, "ignore_eos": True},
                 {**EVERY_TOKEN, "seed": 4, "grammar": GRAMMAR}, {**EVERY_TOKEN, "seed": 5, "response_format": schema}):
        with ask(port, {"max_tokens": 120 if "response_format" in more else 40, "logprobs": 2, **more}) as reply:
            answers.append(json.loads(reply.read())["choices"])
    assert set(json.loads(answers[3][0]["text"])) == set("abc"), answers[3]
    assert len(set(answers[1][0]["logprobs"]["tokens"])) > 15, "a text that could be wrong unseen"
    return answers


class LongRequest:
    """A request that is still running when its server breaks down: what it has been sent, and the error it gets."""

    def __init__(self, port):
        self.text, self.error, self.begun = "", "", threading.Event()
        self.thread = threading.Thread(target=self.read, args=(port,))
        self.thread.start()

    def read(self, port):
        try:
            with ask(port, {"max_tokens": CONTEXT - 100, "stream": True, "ignore_eos": True, **EVERY_TOKEN, "seed": 7}) as reply:
                for line in reply:
                    if not line.startswith(b"data: {"):
                        continue
                    event = json.loads(line[6:])
                    if "error" in event:
                        self.error = event["error"]["message"]
                        return
                    self.text += event["choices"][0]["text"]
                    if len(self.text) > 20:
                        self.begun.set()
        except (OSError, ValueError, http.client.HTTPException) as error:
            self.error = f"no error of its own: {error!r}"
        finally:
            self.begun.set()


def lose_a_rank(job, port, pids, victim, how, within):
    """A request runs, the victim gets that signal: what the request was told, /health and when, the status of the job and when."""
    request = LongRequest(port)
    request.begun.wait(30)
    time.sleep(0.2)
    os.kill(pids[victim], how)
    start, seen, red, ended = time.monotonic(), (None, ""), 0, 0
    while job.poll() is None and time.monotonic() < start + END_WITHIN:
        status = health_of(port)
        if status[0] == 500:
            seen, red = status, time.monotonic() - start
            break
        time.sleep(0.02)
    try:
        code = job.wait(timeout=END_WITHIN)
        ended = time.monotonic() - start
    except subprocess.TimeoutExpired:
        code = None
    request.thread.join(END_WITHIN)
    name = f"rank {victim}"
    good = name in request.error and seen[0] == 500 and name in seen[1] and red < within and code not in (None, 0) and ended < END_WITHIN
    said = (f"{how.name} of {name}: health {seen[0]} after {red:.2f} s, status {code} after {ended:.2f} s, "
            f"{len(request.text)} characters of a running request and then '{request.error}'")
    return good, said, request.text


def check_server(program, golden, env):
    """A server on ranks answers as one process does. When a rank is lost running requests get an error and health turns
    red within two seconds, both name the rank, and then the job ends."""
    failed = 0
    with serving(program, golden, env) as (_, port, _):
        expected, text = answers_of(port), long_text(port)
    for victim, split in ((1, "columns"), (2, "layers")):
        with serving(program, golden, env, 3, split) as (job, port, pids):
            found = answers_of(port)
            good, said, begun = lose_a_rank(job, port, pids, victim, signal.SIGKILL, 2)
        if found != expected:
            print(f"a server on 3 ranks by {split} answers {found} instead of {expected}")
        if not text.startswith(begun[:len(text)]):
            print(f"a text that was cut off by {split} is {begun!r} instead of {text!r}")
        failed += found != expected or not good or not text.startswith(begun[:len(text)])
        print(f"by {split}: {len(found)} answers of one process; {said}{'' if good else ' (WRONG)'}")
    return failed


def long_text(port):
    with ask(port, {"max_tokens": 3000, "ignore_eos": True, **EVERY_TOKEN, "seed": 7}) as reply:
        return json.loads(reply.read())["choices"][0]["text"]


def mpirun_as_machines(ranks, command):
    """mpirun with ranks that NCCL takes for as many machines, so that it joins them on one GPU."""
    words = ["mpirun", *MPI]
    for rank in range(ranks):
        words += ([":"] if rank else []) + ["-n", "1", "-x", f"NCCL_HOSTID=machine-{rank}", *command]
    return words


def check_nccl(program, golden, env):
    """Two ranks on one GPU by columns over NCCL's sockets: the answers of one process, and a rank that is lost while NCCL
    waits for it."""
    env = env | {"SPECEXTEND_NCCL": "on", "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    env |= {name: os.environ[name] for name in ("SPECEXTEND_NCCL_LIBRARY", "SPECEXTEND_MPI_LIBRARY") if name in os.environ}
    code, _, errors = run(generate(program, golden / "qwen3", "-n", "2", device="cuda"), env)
    if code != 0 and "device cuda" in errors:
        print(f"skipped: {errors.strip().splitlines()[-1]}")
        return SKIP
    failed = 0
    with serving(program, golden, env, device="cuda") as (_, port, _):
        expected, text = answers_of(port), long_text(port)
    for how, within in ((signal.SIGKILL, 2), (signal.SIGSTOP, 7)):
        with serving(program, golden, env, 2, "columns", "cuda") as (job, port, pids):
            if health_of(port)[0] != 200:
                print("the server has not started")
                return 1
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/props", timeout=5) as reply:
                backend = json.loads(reply.read())["backend"]
            start = time.monotonic()
            found = answers_of(port)
            took = time.monotonic() - start
            good, said, begun = lose_a_rank(job, port, pids, 1, how, within)
        same = found == expected and text.startswith(begun[:len(text)])
        failed += not (good and same and "with NCCL" in backend)
        print(f"{backend}: {len(found)} answers {'of' if same else 'NOT of'} one process in {took:.1f} s; {said}{'' if good else ' (WRONG)'}")
    return failed


def ranks_of(mpirun_pid):
    """Rank -> process of the job that this mpirun started."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent != mpirun_pid:
                continue
            for word in (entry / "environ").read_bytes().split(b"\0"):
                if word.startswith(b"OMPI_COMM_WORLD_RANK="):
                    found[int(word.split(b"=")[1])] = int(entry.name)
        except (OSError, ValueError):
            pass
    return found


class OwnNetwork:
    """A network namespace for one rank, joined to this one by a pair of devices, until it is cut off. All that ranks
    say to each other goes over TCP: what they watch each other with, and MPI's data."""

    def __init__(self):
        number = os.getpid() % 10000
        self.space, self.here, self.there = f"sxtest{number}", f"sxa{number}", f"sxb{number}"

    def __enter__(self):
        inside = ["netns", "exec", self.space, "ip"]
        for words in (["netns", "add", self.space], ["link", "add", self.here, "type", "veth", "peer", "name", self.there],
                      ["link", "set", self.there, "netns", self.space], ["addr", "add", "10.199.7.1/30", "dev", self.here],
                      ["link", "set", self.here, "up"], [*inside, "addr", "add", "10.199.7.2/30", "dev", self.there],
                      [*inside, "link", "set", self.there, "up"], [*inside, "link", "set", "lo", "up"]):
            done = subprocess.run(["ip", *words], capture_output=True)
            if done.returncode != 0:
                self.__exit__()
                raise OSError(done.stderr.decode(errors="replace").strip())
        return self

    def __exit__(self, *_):
        for words in (["link", "del", self.here], ["netns", "del", self.space]):
            subprocess.run(["ip", *words], capture_output=True)

    def environment(self):  # the rank reaches mpirun over the pair, too
        return {"PMIX_MCA_ptl_tcp_if_include": self.here, "PMIX_MCA_ptl_tcp_remote_connections": "1", "OMPI_MCA_pml": "ob1",
                "OMPI_MCA_btl": "tcp,self", "OMPI_MCA_btl_tcp_if_include": "10.199.7.0/30"}

    def bytes(self):  # that have gone to the rank and come from it
        counters = pathlib.Path("/sys/class/net", self.here, "statistics")
        return sum(int((counters / name).read_text()) for name in ("rx_bytes", "tx_bytes"))

    def command(self, command):
        return ["ip", "netns", "exec", self.space, *command]

    def cut(self):  # at the rank's end: the others still reach each other by the address at this one
        subprocess.run(["ip", "netns", "exec", self.space, "ip", "link", "set", self.there, "down"], check=True)


def can_have_networks():
    if os.geteuid() != 0 or not shutil.which("ip"):
        return "this needs root and `ip`"
    try:
        with OwnNetwork():
            return ""
    except OSError as error:
        return str(error)


def mpirun_in_networks(ranks, victim, network, command):
    """mpirun with the victim in a network of its own."""
    words = ["mpirun", *MPI]
    for rank in range(ranks):
        words += ([":"] if rank else []) + ["-n", "1", *(network.command(command) if rank == victim else command)]
    return words


def check_faults(program, golden, env, times):
    why = can_have_networks()
    if why:
        print(f"no rank is cut off from the network: {why}")
    failed = 0
    chance = random.Random(7)
    model = golden / "qwen3"
    sampled = ["-c", "65536", *SAMPLED, "--seed", "3"]
    flags = ["-n", "60000", *sampled]
    _, expected, _ = run(generate(program, model, "-n", "12000", *sampled), env)
    expected = expected.removesuffix(b"\n")  # which ends a text
    assert len(set(expected)) > 20, "a text that could be wrong unseen"
    for turn in range(times):
        ranks = 2 + turn % 2
        victim = chance.randrange(ranks)
        kind = [signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP, signal.SIGSTOP, None][turn % (4 if why else 5)]
        split = "columns" if turn % 3 else "layers"
        wait = chance.uniform(0.0, 2.5)
        what = f"{kind.name if kind else 'closed network'} of rank {victim} of {ranks} by {split} after {wait:.2f} s"
        with contextlib.ExitStack() as stack, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            command, own_env = generate(program, model, "--split", split, *flags), env
            network = None if kind else stack.enter_context(OwnNetwork())
            if network:
                own_env = env | network.environment()
            start = mpirun_in_networks(ranks, victim, network, command) if network else mpirun(ranks, command)
            job = subprocess.Popen(start, env=own_env, stdin=subprocess.DEVNULL, stdout=out, stderr=errors)
            try:
                deadline = time.monotonic() + 30
                pids = {}
                while len(pids) < ranks and time.monotonic() < deadline and job.poll() is None:
                    pids = ranks_of(job.pid)
                    time.sleep(0.02)
                time.sleep(wait)
                # A rank can be missed once the ranks have met: rank 0 has begun to answer.
                while kind != signal.SIGKILL and os.fstat(out.fileno()).st_size == 0 and time.monotonic() < deadline:
                    time.sleep(0.05)
                sent = network.bytes() if network else 0
                if network:
                    network.cut()
                else:
                    os.kill(pids[victim], kind)
                start = time.monotonic()
                try:
                    code = job.wait(timeout=END_WITHIN + 20)
                except subprocess.TimeoutExpired:
                    code = None
                took = time.monotonic() - start
            finally:
                end(job, pids)
            out.seek(0), errors.seek(0)
            said, text = errors.read().decode(errors="replace"), out.read()
        same = min(len(text), len(expected))
        if network and sent < LEAST_BYTES:
            print(f"{what}: MPI's data has not gone through the network that was closed: {sent} bytes")
            failed += 1
        if code in (None, 0) or took > END_WITHIN or f"rank {victim}" not in said or text[:same] != expected[:same]:
            print(f"{what}: status {code} after {took:.1f} s, {len(text)} bytes of text "
                  f"{'' if text[:same] == expected[:same] else '(WRONG) '}and said: {said}")
            failed += 1
        else:
            print(f"{what}: ended after {took:.1f} s, {len(text)} bytes of text{f', {sent} bytes sent' if network else ''}")
    code, text, errors = run(mpirun(2, generate(program, model, "--split", "columns", "-n", "20", *sampled)), env)
    if code != 0 or not expected.startswith(text.rstrip(b"\n")):
        print(f"the next start: status {code}, {text!r} {errors}")
        failed += 1
    print(f"{times} lost ranks, {failed} failures")
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("golden", type=pathlib.Path)
    parser.add_argument("what", choices=["bits", "presets", "faults", "server", "nccl"])
    parser.add_argument("--cases", help="presets: the program that runs them")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    parser.add_argument("--which", choices=["some", "all"], default="all", help="presets: of the drafters, caches and rules")
    parser.add_argument("--times", type=int, default=10)
    args = parser.parse_args()
    if not shutil.which("mpirun"):
        print("skipped: there is no mpirun (Debian: openmpi-bin)")
        return SKIP
    with tempfile.TemporaryDirectory() as folder:
        env = environment(folder)
        if args.what == "bits":
            return 1 if check_bits(args.program, args.golden, env) else 0
        if args.what == "presets":
            return 1 if check_presets(args.program, args.golden, args.cases, args.ranks, args.which, env) else 0
        if args.what == "server":
            return 1 if check_server(args.program, args.golden, env) else 0
        if args.what == "nccl":
            found = check_nccl(args.program, args.golden, env)
            return found if found in (0, SKIP) else 1
        return 1 if check_faults(args.program, args.golden, env, args.times) else 0


if __name__ == "__main__":
    sys.exit(main())
