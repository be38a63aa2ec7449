#!/usr/bin/env python3
"""usage: tests/python/run.py --build DIR [--patient] TEST_FILE [pytest arguments]

Runs one file of the Python package's tests with an interpreter that has what it needs: this one, or
Debian's. Exit status 77, ctest's "skipped", if there is none.
"""
import argparse
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
NEEDS = {"test_torch.py": ["pytest", "torch"], "test_handoff.py": ["pytest", "torch"],
         "test_vllm.py": ["pytest", "torch", "numpy"],
         "test_vllm_adapters.py": ["pytest", "torch", "numpy"],
         "test_vllm_looks.py": ["pytest", "torch", "numpy"],
         "test_vllm_delivery.py": ["pytest", "torch", "numpy"],
         "test_vllm_weights.py": ["pytest", "torch", "numpy"],
         "test_vllm_device.py": ["pytest", "torch", "numpy"],
         "test_vllm_sleep.py": ["pytest", "torch", "numpy"],
         "test_vllm_threads.py": ["pytest", "torch", "numpy"],
         "test_vllm_siblings.py": ["pytest", "torch", "numpy"],
         "test_vllm_hooks.py": ["pytest", "torch", "numpy"],
         "test_vllm_codec.py": ["pytest", "torch", "numpy"],
         "test_vllm_heads.py": ["pytest", "torch", "numpy"],
         "test_vllm_kinds.py": ["pytest", "torch", "numpy"],
         "test_vllm_windows.py": ["pytest", "torch", "numpy"],
         "test_vllm_uniform.py": ["pytest", "torch", "numpy"],
         "test_vllm_local_chunks.py": ["pytest", "torch", "numpy"],
         "test_vllm_drafts.py": ["pytest", "torch", "numpy"],
         "test_vllm_events.py": ["pytest", "torch", "numpy", "zmq", "msgpack"],
         "test_vllm_hints.py": ["pytest", "torch", "numpy"],
         "test_vllm_retention.py": ["pytest", "torch", "numpy"],
         "test_request_hints.py": ["pytest"],
         "test_retention.py": ["pytest"], "test_api_reference.py": ["pytest"],
         "test_kv_relay.py": ["pytest", "numpy", "zmq", "msgpack"],
         "test_kv_tiers.py": ["pytest", "numpy", "zmq", "msgpack"],
         "test_kv_dynamo.py": ["pytest", "numpy", "zmq", "msgpack"],
         "test_vllm_tier.py": ["pytest", "numpy"],
         "test_exit.py": ["pytest", "torch", "numpy"],
         "test_sglang.py": ["pytest", "torch", "numpy"],
         "test_sglang_epochs.py": ["pytest", "torch", "numpy"],
         "test_sglang_settings.py": ["pytest", "torch", "numpy"],
         "test_lmcache.py": ["pytest", "numpy"],
         "test_wheel.py": ["pytest", "setuptools", "wheel"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--patient", action="store_true", help="lets others have the processor")
    parser.add_argument("file")
    parser.add_argument("rest", nargs="*")
    arguments = parser.parse_args()
    if arguments.patient:  # by a little: their deadlines are long, and real
        os.setpriority(os.PRIO_PROCESS, 0, max(os.getpriority(os.PRIO_PROCESS, 0), 5))
    modules = NEEDS.get(arguments.file, ["pytest", "numpy"])
    # Found, not imported: that takes as long as many a test.
    look = f"import importlib.util as u; exit(None in map(u.find_spec, {modules}))"
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-c", look], check=False, capture_output=True).returncode == 0:
            break
    else:
        print(f"skipped: no Python here has {', '.join(modules)}: run tools/setup")
        return 77
    build = arguments.build.resolve()
    environment = {
        **os.environ,
        "PYTHONPATH": str(HERE.parents[1] / "client" / "python"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",  # tensors are small here: threads of torch's only wait, and spin
        "TERRACE_LIBRARY": str(build / "client" / "libterrace.so"),
        "TERRACE_BUILD": str(build),
        "TERRACED": str(build / "daemon" / "terraced"),
        "TERRACE_SIM_PLUGIN": str(build / "tests" / "libterrace_sim.so"),
    }
    return subprocess.run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider",
                           str(HERE / arguments.file), *arguments.rest], env=environment,
                          check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
