#!/usr/bin/env python3
# PROMISE: T06 on a GPU's machine
# PROMISE: T47 on a GPU's machine
"""What holds on a GPU only, checked on the GPU of this machine, a verdict a line.

usage: tests/gpu/check.py --build DIR [--only CHECK,...] [--out DIR]
       tests/gpu/check.py --build DIR --pack DIR
       tests/gpu/check.py --build DIR --rehearse PLUGIN

  tests      the GPU's tests of unit.cuda: copies, slabs and codecs' kernels, byte for byte
  paths      `terrace bench device`: paths beside one copy, codecs beside a copy's bandwidth
  torch      pages of PyTorch through a real terraced: order, HBM tier, a product beside copies
  death      whether anything is written after a process's death (device_death_bench)
  sanitizer  the tests again under compute-sanitizer, each of its tools

--pack copies what the checks need of a build into DIR, with the libraries of this system but the C
library: they run there by DIR/check.py, on a machine that has a GPU and neither a compiler nor
our libraries. PyTorch is the machine's own (--python). --rehearse runs the checks themselves, in
little, on an emulated GPU, where no time is judged. Exit status 0 only if every line holds, 77
without a GPU.
"""
import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
CHECKS = ("tests", "paths", "torch", "death", "sanitizer")
# Each with what its tests are told. Under two of them a case takes long, so not each is run;
# initcheck takes what a batch of copies writes for memory that nobody wrote.
TOOLS = {"memcheck": {}, "synccheck": {}, "racecheck": {"TERRACE_TEST_STRIDE": "13"},
         "initcheck": {"TERRACE_TEST_STRIDE": "13", "TERRACE_CUDA_BATCHES": "off"}}
# Each by itself: one looks for contexts, of the other's fork no CUDA may have been called before.
SLABS_TEST = "CudaSlabs.AreMadeWithoutAContextOnTheDevice"
DEATH_TEST = "CudaSlabDeathTest.OutliveTheProcessThatMadeThem"
# What the sanitizer would report of them is what they test.
NOT_SANITIZED = f"{SLABS_TEST}:{DEATH_TEST}:CudaBackend.HostMemoryIsRegisteredOnceAndGivenBack"
REHEARSED_TESTS = "CudaBackend.*:CodecKernels.SayWhichPieceHasANaN"
GPU_TESTS = "*CudaBackend.*:CudaSlab*:CodecKernels.*"
# A limit is what is expected; None: a figure that is only reported.
STAGED_SHARE_MIN = 0.90
CODEC_SHARE_MIN = 0.70
PACKED = {"bin/unit_cuda_test": "tests/unit_cuda_test",
          "bin/device_death_bench": "tests/bench/device_death_bench",
          "bin/terrace": "tools/terrace", "bin/terraced": "daemon/terraced",
          "lib/libterrace.so": "client/libterrace.so",
          "lib/libterrace_cuda.so": "cuda/libterrace_cuda.so"}
OF_THE_C_LIBRARY = re.compile(r"(lib(c|m|dl|rt|pthread|resolv)|ld-linux.*)\.so")


@dataclasses.dataclass
class Line:
    """`holds` None: a figure only."""
    check: str
    line: str
    figure: str
    limit: str = ""
    holds: bool | None = None
    is_of_time: bool = False

    @property
    def verdict(self):
        return {True: "holds", False: "FALLS SHORT", None: "-"}[self.holds]


def library_path(*places):
    """Before the machine's own, by which some machines find their driver."""
    own = os.environ.get("LD_LIBRARY_PATH")
    return ":".join([*map(str, places), *([own] if own else [])])


class Machine:
    """Where the programs are, and how they are run."""

    def __init__(self, options):
        self.options = options
        self.is_packed = options.build is None
        root = HERE if self.is_packed else options.build.resolve()
        self._paths = {pathlib.Path(packed).name: root / (packed if self.is_packed else built)
                       for packed, built in PACKED.items()}
        self.out = options.out
        # Where only this user can change it: a build's directory need not be so.
        self.plugin = self.out / "plugin" / "libterrace_cuda.so"
        self.plugin.parent.mkdir(mode=0o755, exist_ok=True)
        shutil.copyfile(options.rehearse or self["libterrace_cuda.so"], self.plugin)
        self.plugin.chmod(0o644)
        self.package = HERE / "python" if self.is_packed else HERE.parents[1] / "client" / "python"
        self.environment = {**os.environ, "TERRACE_CUDA_PLUGIN": str(self.plugin)}
        if self.is_packed:
            self.environment["LD_LIBRARY_PATH"] = library_path(HERE / "lib", HERE / "lib" / "c++")

    def __getitem__(self, name):
        return self._paths[name]

    def run(self, name, command, timeout_s, environment=None):
        """(exit status, output); the output lies in out/NAME.log, too. None: out of time."""
        began = time.monotonic()
        path = self.out / f"{name}.log"
        with path.open("wb") as log:
            try:
                status = subprocess.run([str(part) for part in command], stdout=log,
                                        stderr=subprocess.STDOUT, timeout=timeout_s, check=False,
                                        env=environment or self.environment).returncode
            except subprocess.TimeoutExpired:
                status = None
        output = path.read_text(errors="replace")
        print(f"  {name}: {'out of time' if status is None else f'exit status {status}'} after "
              f"{time.monotonic() - began:.0f} s", file=sys.stderr)
        return status, output


def tests_line(check, line, machine, name, prefix, pattern, timeout_s, bad_output=None,
               environment=None):
    """Runs tests; holds if at least one ran, none failed, and none was skipped."""
    report = machine.out / f"{name}.json"
    report.unlink(missing_ok=True)
    status, output = machine.run(
        name, [*prefix, machine["unit_cuda_test"], f"--gtest_filter={pattern}",
               f"--gtest_output=json:{report}"], timeout_s,
        {**machine.environment, **(environment or {})})
    if not report.exists():
        reason = "out of time" if status is None else f"exit status {status}: {output[-300:]}"
        return Line(check, line, f"not finished: {reason}", "all pass", False)
    cases = [case for suite in json.loads(report.read_text())["testsuites"]
             for case in suite["testsuite"]]
    skipped = [case["name"] for case in cases if case["result"] == "SKIPPED"]
    failed = [case["name"] for case in cases if case.get("failures")]
    figure = f"{len(cases) - len(skipped) - len(failed)} passed"
    for what, names in (("failed", failed), ("skipped", skipped)):
        if names:
            figure += f", {len(names)} {what} ({', '.join(names[:3])})"
    is_clean = status == 0 and not (bad_output and re.search(bad_output, output))
    if not is_clean:
        figure += f"; exit status {status}"
    holds = bool(cases) and is_clean and not skipped and not failed
    return Line(check, line, figure, "all pass", holds)


def check_tests(machine):
    if machine.options.rehearse:
        yield tests_line("tests", "some of them", machine, "tests", [], REHEARSED_TESTS, 300)
        return
    yield tests_line("tests", "slabs are made without a context", machine, "slabs", [], SLABS_TEST,
                     120)
    yield tests_line("tests", "slabs outlive their maker", machine, "slabs_outlive", [],
                     DEATH_TEST, 60)
    yield tests_line("tests", "copies and kernels, byte for byte", machine, "tests", [],
                     f"{GPU_TESTS}-{SLABS_TEST}:{DEATH_TEST}", 300)


def median(row, key):
    return row[key]["median"]


def check_paths(machine):
    options = machine.options
    status, output = machine.run(
        "paths", [machine["terrace"], "bench", "device", "--backend", "cuda", "--plugin",
                  machine.plugin, "--bytes", options.bytes, "--rounds", options.rounds, "--pieces",
                  *options.pieces.split(","), "--json"], 400)
    try:
        report = json.loads(output[output.index("{"):output.rindex("}") + 1])
    except ValueError:
        yield Line("paths", "terrace bench device", f"exit status {status}: {output[-300:]}", "0",
                   False)
        return
    yield Line("paths", "terrace bench device, all its parts", f"exit status {status}", "0",
               status == 0)
    for direction in ("store", "load"):
        for path in ("staged", "direct", "zero_copy"):
            shares = {row["piece_bytes"]: median(row, "share_of_one_copy")
                      for row in report["paths"]
                      if row["direction"] == direction and row["path"].replace("-", "_") == path}
            if not shares:
                continue
            least = min(shares, key=shares.get)
            is_judged = path == "staged"
            yield Line("paths", f"{path}, {direction}: the least share of one copy",
                       f"{shares[least]:.3f}, pieces of {least} B",
                       f">= {STAGED_SHARE_MIN}" if is_judged else "",
                       shares[least] >= STAGED_SHARE_MIN if is_judged else None, is_judged)
    for row in report["victims"]:
        yield Line("paths", f"a copy within the device beside {row['path']} {row['direction']}s of "
                   f"{row['piece_bytes']} B", f"{median(row, 'slowdown'):+.1%}")
    yield Line("paths", "codecs' kernels, bytes other than the host's",
               str(report["codecs_wrong_bytes"]), "0, by kernels",
               report["codecs_wrong_bytes"] == 0 and report["codecs_by"] != "host")
    for row in report["codecs"]:
        share = median(row, "share_of_copy")
        yield Line("paths", f"{row['codec']} {row['of']}, {row['direction']}: share of a copy's "
                   "bandwidth", f"{share:.3f}", f">= {CODEC_SHARE_MIN}", share >= CODEC_SHARE_MIN,
                   is_of_time=True)


def has_torch(python):
    return subprocess.run([python, "-c", "import torch"], capture_output=True,
                          check=False).returncode == 0


def check_torch(machine):
    # The machine's Python has a C++ library of its own.
    environment = {**machine.environment, "PYTHONPATH": str(machine.package),
                   "TERRACE_LIBRARY": str(machine["libterrace.so"])}
    if machine.is_packed:
        environment["TERRACE_PROGRAMS_LD_LIBRARY_PATH"] = environment["LD_LIBRARY_PATH"]
        environment["LD_LIBRARY_PATH"] = library_path(HERE / "lib")
    report = machine.out / "torch.json"
    report.unlink(missing_ok=True)
    device = "host" if machine.options.rehearse else "cuda"
    status, output = machine.run(
        "torch", [machine.options.python, HERE / "torch_pages.py", "--terraced",
                  machine["terraced"], "--plugin", machine.plugin, "--device", device, "--report",
                  report], 400, environment)
    lines = json.loads(report.read_text()) if report.exists() else []
    for line in lines:
        yield Line("torch", **line)
    if status != 0 or not lines:
        yield Line("torch", "torch_pages.py", f"exit status {status}: {output[-300:]}", "0", False)


def check_death(machine):
    status, output = machine.run("death", [machine["device_death_bench"], machine.plugin,
                                           machine.options.kills, machine.options.death_mib], 400)
    figure = " ".join(output.split()) if status in (0, 1) else f"exit status {status}: {output}"
    yield Line("death", "nothing is written after the pidfd", figure[-400:], "no change",
               status == 0)


def check_sanitizer(machine):
    tool = shutil.which("compute-sanitizer",
                        path=f"{os.environ['PATH']}:/usr/local/cuda/bin")
    if tool is None:
        yield Line("sanitizer", "compute-sanitizer", "NOT RUN: there is none on this machine",
                   "no report", False)
        return
    def under(name):
        return tests_line("sanitizer", f"{name} reports nothing", machine, name,
                          [tool, "--tool", name, "--error-exitcode", "99"],
                          f"{GPU_TESTS}-{NOT_SANITIZED}", 300,
                          r"ERROR SUMMARY: [1-9]|RACECHECK SUMMARY: [1-9]|not supported",
                          TOOLS[name])

    with concurrent.futures.ThreadPoolExecutor() as pool:  # no time is judged
        yield from pool.map(under, TOOLS)


def libraries_of(program):
    listed = subprocess.run(["ldd", str(program)], stdout=subprocess.PIPE, text=True, check=True)
    for name, path in re.findall(r"(\S+) => (/\S+)", listed.stdout):
        if not OF_THE_C_LIBRARY.match(name):
            yield name, pathlib.Path(path)


def pack(build, to):
    """Copies what the checks need to `to`, stripped."""
    if to.exists() and any(to.iterdir()):
        sys.exit(f"tests/gpu/check.py: --pack is '{to}', which holds something: name an empty "
                 "directory")
    for packed, built in PACKED.items():
        source = build / built
        if not source.exists():
            sys.exit(f"tests/gpu/check.py: there is no '{source}': build it first (ninja -C "
                     f"{build} {source.name})")
        target = to / packed
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["strip", "-o", target, source], check=True)
        for name, path in libraries_of(source):
            place = to / "lib" / ("c++" if re.match(r"lib(stdc\+\+|gcc_s)\.", name) else "")
            place.mkdir(exist_ok=True, parents=True)
            shutil.copy(path, place / name)
    shutil.copytree(HERE.parents[1] / "client" / "python" / "terrace", to / "python" / "terrace",
                    ignore=shutil.ignore_patterns("__pycache__", "*.so*"))
    for script in ("check.py", "torch_pages.py"):
        shutil.copy(HERE / script, to / script)
    byte_count = sum(path.stat().st_size for path in to.rglob("*") if path.is_file())
    print(f"{to}: {byte_count / 2**20:.1f} MiB; there: {to}/check.py --out DIR")


def gpu_name():
    try:
        asked = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,"
                                "noheader"], capture_output=True, text=True, check=False)
        named = asked.stdout.strip().splitlines() if asked.returncode == 0 else []
    except OSError:
        named = []
    if not named and pathlib.Path("/dev/nvidia0").exists():
        return "a GPU that nvidia-smi does not name"
    return named[0] if named else None


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, add_help=True,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, help="a build of Terrace")
    parser.add_argument("--pack", type=pathlib.Path, help="copy what is needed there, and end")
    parser.add_argument("--out", type=pathlib.Path, help="where logs and report.json go")
    parser.add_argument("--only", default=",".join(CHECKS), help="some of " + ",".join(CHECKS))
    parser.add_argument("--rehearse", type=pathlib.Path, metavar="PLUGIN",
                        help="with the emulated plugin, in little, without a GPU")
    parser.add_argument("--python", default="python3", help="one that has PyTorch")
    parser.add_argument("--bytes", default="256M", help="moved by one call of the paths")
    parser.add_argument("--rounds", default="7")
    parser.add_argument("--pieces", default="4K,16K,64K,256K,2M")
    parser.add_argument("--kills", default="30")
    parser.add_argument("--death-mib", default="1024")
    options = parser.parse_args()
    if options.rehearse:
        options.only = ",".join(check for check in CHECKS if check != "sanitizer")
        options.bytes, options.rounds, options.pieces = "1M", "1", "64K"
        options.kills, options.death_mib = "2", "16"
    if options.rehearse and not has_torch(options.python):
        print(f"!!! NOT RUN: {options.python} has no PyTorch: name one by --python")
        sys.exit(77)
    unknown = sorted(set(options.only.split(",")) - set(CHECKS))
    if unknown:
        parser.error(f"--only has '{unknown[0]}': name some of {', '.join(CHECKS)}")
    if options.build is None and not (HERE / "bin").is_dir():
        parser.error("--build is missing: name a build of Terrace, say build/release")
    return options


def main():
    options = parse_arguments()
    if options.pack:
        return pack(options.build.resolve(), options.pack)
    name = gpu_name()
    if name is None and options.rehearse is None:
        print("!!! NO GPU: nvidia-smi names none, so nothing was checked.")
        return 77
    if options.out is None:
        options.out = pathlib.Path(tempfile.mkdtemp(prefix="terrace-gpu-"))
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    machine = Machine(options)
    lines = []
    for check in options.only.split(","):
        for line in globals()[f"check_{check}"](machine):
            if options.rehearse and line.is_of_time:
                line.holds = None
            lines.append(line)
            print(f"{line.check:10} {line.line}: {line.figure}"
                  + (f" ({line.limit})" if line.limit else "") + f" .. {line.verdict}", flush=True)
            (options.out / "report.json").write_text(json.dumps(
                {"gpu": name, "lines": [dataclasses.asdict(each) for each in lines]}, indent=1))
    short = [line for line in lines if line.holds is False]
    held = sum(line.holds is True for line in lines)
    print(f"Verdict on {name or 'no GPU: a rehearsal'}: {held} lines hold, {len(short)} fall short."
          f" Logs: {options.out}")
    return 1 if short or not held else 0


if __name__ == "__main__":
    sys.exit(main())
