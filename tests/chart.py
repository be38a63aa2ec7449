#!/usr/bin/env python3
"""The Helm chart of packaging/kubernetes: with its own values it is terraced.yaml, to the byte.

usage: tests/chart.py [CHART]

Rendered twice: by the few forms of templates that are read here, and by Helm itself where the
Python package helm-python-sdk (PyPI; Helm's own Go library) is installed. Where it is not, that
is said, and what Helm alone can tell is not checked: other values, and what the schema refuses.
"""
import json
import pathlib
import re
import socket
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
CHART = ROOT / "packaging/kubernetes/chart"
MANIFEST = ROOT / "packaging/kubernetes/terraced.yaml"
KEEPER = "/run/terrace/keeper.sock"
ORDER = ("config.yaml", "keeper.yaml", "daemon.yaml")
IMAGE = "IMAGE"
BLOCK = re.compile(r"\{\{-? *(with|range)\b([^}]*)\}\}((?:(?!\{\{-? *(?:with|range)\b).)*?)"
                   r"(\{\{-? *end *\}\})", re.S)
VALUE = re.compile(r"\{\{ *\.Values\.(\w+)(?: *\| *indent (\d+))? *\}\}")


class Failure(Exception):
    pass


def expect(holds, what):
    if not holds:
        raise Failure(what)
    print(f"  ok  {what}", flush=True)


def read_values(text):
    """Top-level `key: value` of values.yaml: texts, numbers, empty collections and one block."""
    values = {}
    for key, scalar in re.findall(r"^(\w+): (.*)$", text, re.M):
        values[key] = scalar.strip('"')
    block = re.search(r"^config: \|\n((?:  .*\n)+)", text, re.M)
    values["config"] = re.sub(r"^  ", "", block[1], flags=re.M)
    return values


def is_empty(value):
    return value in ("", "{}", "[]")


def render(template, values):
    """What Helm makes of it where every block is about a value that is empty. Else: a Failure."""
    while block := BLOCK.search(template):
        name = re.search(r"\.Values\.(\w+)", block[2])
        if name is None or not is_empty(values[name[1]]):
            raise Failure(f"{block[0][:40]}… is about a value that is not empty, or about none: "
                          "Helm alone can render that")
        begin = block.start()
        if block[0].startswith("{{-"):
            begin = len(template[:begin].rstrip())
        template = template[:begin] + template[block.end():]

    def put(match):
        return re.sub(r"^", " " * int(match[2] or 0), values[match[1]], flags=re.M)
    rendered = VALUE.sub(put, template)
    if "{{" in rendered:
        form = rendered[rendered.index("{{"):][:40]
        raise Failure(f"{form}… is no form that is read here: tests/chart.py, or a simpler one")
    return rendered


def essence(text):
    """Without comment lines, empty lines and what ends a line: what a cluster is told."""
    lines = [line.rstrip() for line in text.split("\n")]
    return [line for line in lines if line and not line.lstrip().startswith("#")]


def first_difference(rendered, plain):
    for number, (ours, theirs) in enumerate(zip(rendered, plain)):
        if ours != theirs:
            return f"line {number + 1} of its essence is {ours!r}, not {theirs!r}"
    return f"{len(rendered)} lines, not {len(plain)}"


def check_same(by_name, who):
    rendered = essence("---\n".join(by_name[name].rstrip("\n") + "\n" for name in ORDER))
    plain = essence(MANIFEST.read_text())
    expect(rendered == plain,
           f"rendered by {who} the chart is {MANIFEST.name}"
           + ("" if rendered == plain else ": NO: " + first_difference(rendered, plain)))


def check_files(chart):
    version = re.search(r"project\(terrace VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1]
    for key in ("version", "appVersion"):
        said = re.search(rf"^{key}: (\S+)$", (chart / "Chart.yaml").read_text(), re.M)[1]
        expect(said == version, f"Chart.yaml's {key} is the project's, {version}")
    templates = {path.name for path in (chart / "templates").glob("*.yaml")}
    expect(templates == set(ORDER), f"the templates are {', '.join(sorted(templates))}")
    values = read_values((chart / "values.yaml").read_text())
    used = set(re.findall(r"\.Values\.(\w+)", "".join(
        path.read_text() for path in (chart / "templates").iterdir())))
    expect(used == set(values), "every value is used, and every one used has a default"
           + ("" if used == set(values) else f": NO: {sorted(used ^ set(values))}"))
    schema = set(re.findall(r'^    "(\w+)": \{', (chart / "values.schema.json").read_text(), re.M))
    expect(schema == set(values) | {"global"}, "the schema knows each of them")
    return values


def refusal(helm, chart, values):
    try:
        chart.validate_schema(values)
        chart.render(values, name="t", namespace="terrace")
    except helm.HelmError as error:
        return str(error)
    return ""


def check_by_helm(path):
    try:
        import helm_python as helm  # pylint: disable=import-outside-toplevel
    except ImportError:
        print("NOT CHECKED: Helm itself has not rendered the chart, for want of helm-python-sdk "
              "(PyPI)")
        return
    with helm.Chart.load(str(path)) as chart:
        def rendered(**values):
            made = chart.render({"image": IMAGE, **values}, name="t", namespace="terrace")
            return {pathlib.Path(name).name: text for name, text in made.items()}
        check_same(rendered(), f"Helm {helm.helm_sdk_version()}")
        other = rendered(drives=["/mnt/a", "/mnt/b"], nodeSelector={"gpu": "h100"}, user=1234,
                         tolerations=[{"key": "gpu", "operator": "Exists"}], hugepages2Mi="64Gi",
                         imagePullPolicy="Always", config="[daemon]\n")
        daemon = " ".join(other["daemon.yaml"].split())
        for part in ("/var/lib/terrace, /mnt/a, /mnt/b]",
                     "- {name: drive-1, mountPath: /mnt/b}",
                     "- name: drive-0 hostPath: {path: /mnt/a, type: Directory}",
                     "nodeSelector: gpu: h100", "tolerations: - key: gpu operator: Exists",
                     "limits: {memory: 68Gi, hugepages-2Mi: 64Gi}", "runAsUser: 1234",
                     "imagePullPolicy: Always"):
            expect(part in daemon, f"other values: {part}")
        for values, part in (({}, "image"), ({"image": IMAGE, "drive": []}, "drive"),
                             ({"image": IMAGE, "drives": ["mnt"]}, "drives")):
            expect(part in refusal(helm, chart, values), f"{values} is refused, and {part} named")


def ticks_of(command, appears_at):
    """How often it sleeps where the keeper's socket appears in that second; None: never."""
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/keeper.sock"
        with socket.socket(socket.AF_UNIX) as keeper:
            keeper.bind(path + ".not_yet")
            sleep = f"echo $i; [ $i != '{appears_at}' ] || mv {path}.not_yet {path}"
            script = f"sleep() {{ {sleep}; }}; {command.replace(KEEPER, path)}"
            done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
            expect(done.returncode == 0 and not done.stderr, "the keeper's wait ends well "
                   + done.stderr)
    return len(done.stdout.split())


def check_keeper():
    """Of the manifest: the daemon's pod begins once the keeper listens, or nobody comes."""
    text = MANIFEST.read_text()
    expect(f'keeper_socket = "{KEEPER}"' in text and f"--keeper, --socket, {KEEPER}]" in text,
           f"daemon and keeper meet at {KEEPER}")
    daemon = text.split("\n---\n")[-1]
    waits = re.search(r"^      initContainers:\n(?:.*\n)*?        - name: keeper\n(?:.*\n)*?"
                      r"          command: \[sh, -c, (\".*\")\]\n(?:.*\n)*?      containers:\n",
                      daemon, re.M)
    expect(waits is not None, "an init container of the daemon's waits for the keeper")
    command = json.loads(waits[1])
    expect(f"test -S {KEEPER}" in command, "for its socket")
    expect(ticks_of(command, 3) == 3, "no longer than until it is there")
    expect(ticks_of(command, None) == 30, "and 30 s at most")


def main():
    chart = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else CHART
    try:
        values = check_files(chart) | {"image": IMAGE}
        check_same({name: render((chart / "templates" / name).read_text(), values)
                    for name in ORDER}, "tests/chart.py")
        check_keeper()
        check_by_helm(chart)
    except Failure as failure:
        print(f"VERDICT: FAILED: {failure}")
        return 1
    print("VERDICT: OK: the chart and the plain manifests are the same objects")
    return 0


if __name__ == "__main__":
    sys.exit(main())
