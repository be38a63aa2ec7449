#!/usr/bin/env python3
"""The OCI image that `tools/image` makes, and the Kubernetes manifests for it.

The image says what to run and as whom; from its own files, as that user, the daemon serves with the
configuration of the manifests' ConfigMap, and their probe succeeds. Manifests are held to the
schema of Kubernetes where the Python package kubernetes-validate is there; where not, it is said.
"""
import argparse
import json
import pathlib
import re
import shutil
import sys
import tempfile
import time

import debian_root
import yesterday
from debian_root import Failure
from install import expect

MANIFESTS = sorted((yesterday.ROOT / "packaging/kubernetes").glob("*.yaml"))
SOCKET = "/run/terrace/default.sock"
ANSWER_S = 60


class ImageRoot(debian_root.DebianRoot):
    """The image's files, in place of a root by debootstrap."""

    def __init__(self, directory, bundle):
        super().__init__()
        self.home = pathlib.Path(directory)
        self.path = bundle / "rootfs"

    def __enter__(self):
        self.open()
        return self

    def __exit__(self, *_):
        self.close()


def check_manifests():
    try:
        import kubernetes_validate  # noqa: F401 pylint: disable=import-outside-toplevel
    except ImportError:
        print("NOT CHECKED: the manifests' schema, for want of kubernetes-validate (PyPI)")
        return
    done = debian_root.run(sys.executable, "-m", "kubernetes_validate", "--strict", *MANIFESTS,
                           check=False)
    told = done.stdout + done.stderr
    expect(done.returncode == 0 and told.count(" passed ") == 4, f"manifests: {told.strip()}")


def config_of_manifests():
    """The ConfigMap's terraced.toml, with memory that this machine has."""
    text = (yesterday.ROOT / "packaging/kubernetes/terraced.yaml").read_text()
    block = re.search(r"^  terraced\.toml: \|\n((?:    .*\n)+)", text, re.M)[1]
    return re.sub(r"^    ", "", block, flags=re.M).replace("64GiB", "512MiB")


def check_runs(root, config):
    user = config["config"]["User"].split(":")[0]
    root.run("install", "-d", "-o", "terrace", "-g", "terrace", "/run/terrace", "/var/lib/terrace")
    (root.path / "etc/terrace/terraced.toml").write_text(config_of_manifests())
    log = root.home / "log"
    command = config["config"]["Entrypoint"] + config["config"]["Cmd"]
    processes = [
        root.start(command[0], "--keeper", "--socket", "/run/terrace/keeper.sock", user=user,
                   log=log)]
    wait(root, "/run/terrace/keeper.sock", processes[0], log)
    processes.append(root.start(*command, user=user, log=log))
    wait(root, SOCKET, processes[1], log)
    status = json.loads(root.run("terrace", "status", "--json", "--socket", SOCKET, "--timeout-ms",
                                 "5000", user=user).stdout)
    expect(status["dram_holder"] == "keeper",
           f"version {status['version']} serves as user {user}; the probe says so; its memory is "
           "held by the keeper")


def wait(root, socket, process, log):
    end = time.monotonic() + ANSWER_S
    while root.run("test", "-S", socket, check=False).returncode != 0:
        if process.poll() is not None or time.monotonic() > end:
            raise Failure(f"nobody listens at {socket}: {log.read_text()[-2000:]}")
        time.sleep(0.05)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    debian_root.add_options(parser)
    arguments = parser.parse_args()
    debian_root.require("debootstrap", "nsenter", "unshare", "umoci", "skopeo")
    options = [word for name in ("debs", "base") if (value := getattr(arguments, name))
               for word in (f"--{name}", value)]
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="terrace-image."))
    try:
        layout = scratch / "layout"
        debian_root.run(yesterday.ROOT / "tools/image", *options, layout)
        config = json.loads(debian_root.run("skopeo", "inspect", "--config",
                                            f"oci:{layout}:terraced").stdout)
        expect(config["config"]["Entrypoint"] == ["/usr/bin/terraced"]
               and re.fullmatch(r"[1-9]\d*:[1-9]\d*", config["config"]["User"]),
               f"the image runs {config['config']['Entrypoint']} as {config['config']['User']}")
        debian_root.run("umoci", "unpack", "--image", f"{layout}:terraced", scratch / "bundle")
        size = debian_root.run("du", "-sm", layout).stdout.split()[0]
        print(f"      {size} MiB packed", flush=True)
        with ImageRoot(scratch, scratch / "bundle") as root:
            check_runs(root, config)
        check_manifests()
        profile = json.loads(debian_root.run(
            yesterday.ROOT / "packaging/kubernetes/seccomp.py").stdout)
        names = profile["syscalls"][0]["names"]
        expect({"io_uring_setup", "io_uring_enter", "io_uring_register"} <= set(names)
               and "mount" not in names, f"the seccomp profile allows {len(names)} calls")
    except Failure as failure:
        print(f"VERDICT: FAILED: {failure}")
        return 1
    finally:
        shutil.rmtree(scratch)
    print("VERDICT: OK: an image without an engine, and manifests for it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
