#!/usr/bin/env python3
"""Metrics of a verified run, held against what everybody else counted; a real Prometheus beside it.

usage: tests/long/metrics_run.py [--build DIR] [--short]

One client stores and loads 100,000 prompts (--short: 5,000) and compares every byte. Then metrics,
`terrace status`, `terrace hitrate`, a replay of the recording and the client itself must agree to
the unit, and miss causes must sum. All the while Prometheus scrapes and has the alert rules, their
times cut to a thirtieth: none may be pending in the end or fire at all. Every expression of
dashboard and alerts goes through promtool, the page through a headless Chromium. Then faults: each
must fire its alert. Exit status 77 where Prometheus is not installed.
"""
import argparse
import contextlib
import ctypes
import html
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
MONITORING = ROOT / "systemd/monitoring"
EXIT_SKIPPED = 77
PR_SET_PDEATHSIG = 1
SCALE = 30  # of the rules' times
BLOCK_BYTES = 16384
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
failures = []


def check(holds, sentence):
    print(("ok    " if holds else "FAIL  ") + sentence, flush=True)
    if not holds:
        failures.append(sentence)


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def free_port():
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(condition, limit_s):
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def get(url, limit_s=20):
    try:
        with urllib.request.urlopen(url, timeout=limit_s) as answer:
            return answer.read().decode()
    except (urllib.error.URLError, OSError):
        return None


def run(*command, text=None):
    return subprocess.run([str(c) for c in command], input=text, text=True, capture_output=True,
                          check=False)


def scaled(rules):
    """The rules with every duration cut to a thirtieth, so that minutes are seconds."""
    def cut(match):
        return f"{max(1, int(match[1]) * UNITS[match[2]] // SCALE)}s"
    for before, after in ((r"(?<=\[)", r"(?=\])"), ("(?<=for: )", ""), ("(?<=offset )", "")):
        rules = re.sub(before + r"(\d+)([smhd])" + after, cut, rules)
    return rules


class Daemon:
    def __init__(self, directory, build, name, keys="", sections=""):
        self.name, self.directory = name, directory / name
        self.directory.mkdir()
        self.build, self.port = build, free_port()
        self.socket = self.directory / "t.sock"
        (self.directory / "t.toml").write_text(
            f'[daemon]\nstate_dir = "{self.directory}"\ntrace_dir = "{self.directory}"\n'
            f'dram_bytes = "16MiB"\nsegment_bytes = "2MiB"\neviction = "lru"\n{keys}'
            f'[metrics]\nlisten = "127.0.0.1:{self.port}"\n{sections}'
            f'[[domain]]\nname = "chat"\nsocket = "{self.socket}"\n')
        self.process = None
        self.start()

    def start(self):
        with open(self.directory / "log", "ab") as log:
            self.process = subprocess.Popen(
                [self.build / "daemon/terraced", "--config", self.directory / "t.toml"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent)
        if not wait_until(lambda: get(f"http://127.0.0.1:{self.port}/readyz") == "ready\n", 30):
            raise SystemExit(f"{self.name} is not ready:\n{(self.directory / 'log').read_text()}")

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def terrace(self, *arguments):
        done = subprocess.run([self.build / "tools/terrace", *map(str, arguments), "--json"],
                              text=True, capture_output=True, check=False,
                              env={**os.environ, "TERRACE_SOCKET": str(self.socket)})
        if done.returncode != 0:
            raise SystemExit(f"terrace {' '.join(map(str, arguments))}: {done.stdout}{done.stderr}")
        return json.loads(done.stdout)

    def scrape(self):
        text = get(f"http://127.0.0.1:{self.port}/metrics")
        series = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                series[name] = float(value)
        return text, series


class Prometheus:
    def __init__(self, directory, daemons):
        self.port = free_port()
        (directory / "rules.yml").write_text(
            scaled((MONITORING / "terrace-alerts.yml").read_text()))
        targets = [f"127.0.0.1:{daemon.port}" for daemon in daemons]
        (directory / "prometheus.yml").write_text(json.dumps({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(directory / "rules.yml")],
            "scrape_configs": [{"job_name": "terrace",
                                "static_configs": [{"targets": targets}]}]}))
        self.url = f"http://127.0.0.1:{self.port}"
        with open(directory / "prometheus.log", "wb") as log:
            self.process = subprocess.Popen(
                ["prometheus", f"--config.file={directory / 'prometheus.yml'}",
                 f"--storage.tsdb.path={directory / 'tsdb'}",
                 f"--web.listen-address=127.0.0.1:{self.port}"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent)
        if not wait_until(lambda: get(f"{self.url}/-/ready") is not None, 30):
            raise SystemExit((directory / "prometheus.log").read_text())

    def query(self, expression):
        answer = json.loads(get(f"{self.url}/api/v1/query?query="
                                + urllib.parse.quote(expression)))
        return answer["data"]["result"]

    def alerts(self, state="firing"):
        alerts = json.loads(get(f"{self.url}/api/v1/alerts"))["data"]["alerts"]
        return sorted({a["labels"]["alertname"] for a in alerts if a["state"] == state})

    def stop(self):
        self.process.kill()
        self.process.wait()


def write_trace(path, request_count):
    """Chats that grow, under a few system prompts, more of them than there is room for."""
    rng = random.Random(7)
    next_id = 100_000
    heads = [list(range(1000 * h + 1, 1000 * h + 5)) for h in range(1, 6)]
    chats = []
    with open(path, "w", encoding="ascii") as trace:
        for number in range(request_count):
            if len(chats) < 200 or rng.random() < 0.05:
                chats.append(list(rng.choice(heads)))
            chat = chats[-1 - min(int(rng.expovariate(1 / 40)), len(chats) - 1)]
            chat += range(next_id, next_id + rng.randint(1, 2))
            next_id += 2
            if len(chat) > 16:
                del chat[4 + len(chat) // 2:]
            del chats[:-400]
            trace.write(json.dumps({"timestamp": number, "input_length": len(chat) * 512,
                                    "hash_ids": chat}) + "\n")


def check_agreement(daemon, bench, recording):
    domain = daemon.terrace("status")["domain"]
    text, series = daemon.scrape()
    counts = daemon.terrace("hitrate")["rows"][0]["windows"]["start"]

    def metric(name, **labels):
        return series[name + "{" + ",".join(f'{k}="{v}"' for k, v in
                                            {"domain": "chat", **labels}.items()) + "}"]
    missed = {cause: metric("terrace_acquire_blocks_missed_total", cause=cause)
              for cause in domain["acquire_blocks_missed"]}
    hit = metric("terrace_acquire_blocks_hit_total", tier="dram")
    asked = metric("terrace_acquire_blocks_asked_total")
    requests = metric("terrace_acquire_requests_total")
    replayed = daemon.terrace("replay", recording, "--policy", "lru", "--capacity",
                              16 * 2 ** 20 // BLOCK_BYTES)["results"][0]
    check(bench["is_verified"] and bench["blocks_verified"] == bench["blocks_hit"] > 0,
          f"the client compared all {bench['blocks_hit']} blocks that it hit")
    check(requests == domain["acquire_requests"] == bench["request_count"]
          == metric("terrace_request_seconds_count", verb="acquire"),
          f"{requests:.0f} requests, by metrics, status, client and histogram")
    check(asked == domain["acquire_blocks_asked"] == bench["blocks_asked"]
          == counts["blocks_asked"], f"{asked:.0f} blocks asked, by all")
    check(hit == domain["acquire_blocks_hit"] == bench["blocks_hit"] == counts["blocks_hit"]
          == replayed["hit_blocks"],
          f"{hit:.0f} blocks hit, by metrics, status, client, hitrate and replay "
          f"({replayed['hit_blocks']})")
    check(missed == domain["acquire_blocks_missed"] and sum(missed.values()) == asked - hit,
          f"causes sum to the {asked - hit:.0f} misses: "
          + ", ".join(f"{c} {n:.0f}" for c, n in missed.items() if n))
    check(metric("terrace_sealed_blocks_total") == domain["blocks_sealed"]
          == bench["blocks_stored"], f"{bench['blocks_stored']} blocks stored, by all")
    of_groups = sum(v for k, v in series.items()
                    if k.startswith("terrace_group_blocks_hit_total{"))
    check(of_groups == hit, "the groups' hits sum to the domain's")
    clean = run("promtool", "check", "metrics", text=text)
    check(clean.returncode == 0 and not clean.stderr,
          f"promtool check metrics: {clean.stderr.strip() or 'clean'}; "
          f"{len(series)} series, {len(text) // 1024} KiB")


def check_expressions(prometheus):
    known = set(re.findall(r"`(terrace_[a-z_]+)", (ROOT / "docs/METRICS.md").read_text()))
    dashboard = json.loads((MONITORING / "terrace-dashboard.json").read_text())
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    rules = re.findall(r"expr: (?:>-\n((?: {10}.*\n)+)|(.*))",
                       (MONITORING / "terrace-alerts.yml").read_text())
    told = [" ".join((a or b).split()) for a, b in rules]
    bad, empty = [], []
    for expression in shown + told:
        expression = (expression.replace("$instance", ".*").replace("$domain", ".*")
                      .replace("$__rate_interval", "10s"))
        names = {re.sub(r"_(bucket|count|sum)$", "", name)
                 for name in re.findall(r"\bterrace_[a-z_]+", expression)}
        done = run("promtool", "query", "instant", prometheus.url, expression)
        if done.returncode != 0 or not names <= known:
            bad.append(f"{expression}: {done.stderr.strip()} {sorted(names - known)}")
        elif not done.stdout.strip():
            empty.append(expression)
    check(not bad, f"promtool ran {len(shown)} expressions of the dashboard and {len(told)} of "
          f"alerts: {bad or 'all understood, of documented metrics'}")
    lacking = [e for e in empty if e in shown and not re.search(r"budget|topk", e)]
    check(not lacking, f"panels without data: {lacking or 'none'}")


def check_page(daemon):
    browser = shutil.which("chromium")
    if browser is None:
        print("skip  chromium is not installed: the page was not looked at")
        return
    with tempfile.TemporaryDirectory() as profile:
        page = run("timeout", "60", browser, "--headless", "--no-sandbox", "--disable-gpu",
                   f"--user-data-dir={profile}", "--virtual-time-budget=15000", "--dump-dom",
                   f"http://127.0.0.1:{daemon.port}/").stdout
    status = daemon.terrace("status")
    domain = status["domain"]

    def value(mark, name="value"):
        tag = re.search(rf'<[^>]*id="{mark}"[^>]*>', page)
        found = tag and re.search(rf'data-{name}="([^"]*)"', tag[0])
        return found and float(found[1])
    expected = {("totals", "hit"): domain["acquire_blocks_hit"],
                ("totals", "asked"): domain["acquire_blocks_asked"],
                ("totals", "requests"): domain["acquire_requests"],
                ("totals", "saved-us"): domain["prefill_saved_us"],
                ("dram-used", "value"): domain["slot_bytes_used"],
                ("dram-capacity", "value"): domain["dram_capacity_bytes"],
                ("dram-hit", "value"): domain["acquire_blocks_by_tier"][1],
                ("rates-text", "asked"): domain["acquire_blocks_asked"],
                ("rates-text", "hit"): domain["acquire_blocks_hit"],
                ("surveyed", "blocks"): domain["block_count"],
                **{(f"missed-{cause}", "value"): n
                   for cause, n in domain["acquire_blocks_missed"].items()}}
    wrong = {f"{mark} {name}": (value(mark, name), wanted)
             for (mark, name), wanted in expected.items() if value(mark, name) != wanted}
    check(not wrong, f"the page in Chromium shows {len(expected)} figures as status has them"
          + (f": {wrong}" if wrong else ""))
    group = re.search(r"bench-16384x1", html.unescape(page)) is not None
    rows = len(re.findall(r"<tr>", page))
    check(group and rows > 20, f"its tables have {rows} rows, the group's name among them")


# ---- faults -------------------------------------------------------------------------------------

HOLDER = """
import sys, time
import terrace
client = terrace.Client(sys.argv[1], default_timeout_s=20)
client.wait_connected(20)
space = terrace.Space(model="held", revision="r1", dtype="bf16", layout="nhd", layers=1,
                      kv_heads=1, head_size=64, block_tokens=16, part_bytes=(16384,))
group = client.open(terrace.SpaceGroup("held", [space]))
leases = [group.reserve(group.hash([n] * 16 * 10)) for n in range(int(sys.argv[2]))]
print(sum(len(lease.reserved) for lease in leases), flush=True)
time.sleep(600)
"""


def hold_blocks(build, daemon, lease_count):
    """A process that has reserved ten blocks under each of so many leases."""
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, daemon.socket, str(lease_count)],
                              env={**os.environ, **environment_of(build)}, text=True,
                              stdout=subprocess.PIPE, preexec_fn=die_with_parent)
    held = holder.stdout.readline()
    if held.strip() != str(10 * lease_count):
        raise SystemExit(f"the holder of leases has '{held.strip()}'")
    return holder


def environment_of(build):
    return {"PYTHONPATH": str(ROOT / "client/python"), "PYTHONDONTWRITEBYTECODE": "1",
            "TERRACE_LIBRARY": str(build / "client/libterrace.so")}


def refuse_sessions(terrace, daemon):
    clients = [terrace.Client(str(daemon.socket)) for _ in range(8)]
    wait_until(lambda: any(c.last_error for c in clients), 10)
    return clients


def spoil_blocks(terrace, daemon):
    """A writer changes bytes after it has made their checksums; another session asks for them."""
    space = terrace.Space(model="spoilt", revision="r1", dtype="bf16", layout="nhd", layers=1,
                          kv_heads=1, head_size=64, block_tokens=16, part_bytes=(16384,))
    writer, reader = (terrace.Client(str(daemon.socket), default_timeout_s=20) for _ in range(2))
    groups = []
    for client in (writer, reader):
        client.wait_connected(20)
        groups.append(client.open(terrace.SpaceGroup("spoilt", [space])))
    keys = groups[0].hash(list(range(64)))
    with groups[0].reserve(keys) as lease:
        for key in range(len(keys)):
            slot = lease.slot(key)
            slot[:] = bytes(len(slot))
            lease.checksum(key, 0)
            slot[7] = 1
        lease.commit()
    groups[1].acquire(keys).release()
    return writer, reader


def knock(path, count):
    peers = [socket.socket(socket.AF_UNIX) for _ in range(count)]
    for peer in peers:
        with contextlib.suppress(OSError):
            peer.connect(str(path))
    return peers  # closed when nobody has them any more


def restart(daemon, count):
    for _ in range(count):
        daemon.stop()
        daemon.start()
        time.sleep(2.5)  # Prometheus sees each start


def fault_daemon(directory, build):
    """Few sessions, leases that end soon, a server that is not there, a domain that is closed."""
    refusing = directory / "nobody.sock"
    return Daemon(
        directory, build, "faulty",
        keys="sessions_per_process_max = 4\nlease_ttl_ms = 1000\n",
        sections=f'[redis]\nendpoints = ["127.0.0.1:{free_port()}"]\n'
                 f'[[domain]]\nname = "closed"\nsocket = "{refusing}"\nallow_uids = []\n'
    ), refusing


def check_faults(directory, build):
    os.environ.update(environment_of(build))
    sys.path.insert(0, str(ROOT / "client/python"))
    import terrace  # pylint: disable=import-outside-toplevel
    daemon, refusing = fault_daemon(directory, build)
    (directory / "faults").mkdir()
    prometheus = Prometheus(directory / "faults", [daemon])
    kept = []  # until the end
    try:
        time.sleep(4)  # each counter is seen at 0 first

        def expect(alert, fault):
            fault()
            fired = wait_until(lambda: alert in prometheus.alerts(), 90)
            check(fired, f"{alert} " + ("fires" if fired else
                                        f"does not fire; firing: {prometheus.alerts()}"))
        expect("TerraceTierOff", lambda: None)  # the server is not there
        expect("TerraceConnectionsRefused", lambda: knock(refusing, 40))
        expect("TerraceWrongChecksums", lambda: kept.append(spoil_blocks(terrace, daemon)))
        kept.clear()
        expect("TerraceSessionsRefused", lambda: kept.append(refuse_sessions(terrace, daemon)))
        for clients in kept:
            for client in clients:
                client.close()
        kept.clear()
        holder = hold_blocks(build, daemon, 20)
        # The leases are revoked once, and what they held is fenced as long as it stands.
        expect("TerraceLeasesRevoked", lambda: holder.send_signal(signal.SIGSTOP))
        expect("TerraceFencedMemory", lambda: None)
        holder.kill()
        holder.wait()
        holder = hold_blocks(build, daemon, 40)
        expect("TerraceNoSpace", lambda: [kept.append(hold_more(terrace, daemon))])
        holder.kill()
        holder.wait()
        kept.clear()
        expect("TerraceRestarts", lambda: restart(daemon, 3))
        expect("TerraceDown", daemon.stop)
    finally:
        prometheus.stop()
        daemon.stop()


def hold_more(terrace, daemon):
    """Reserves all there is, and then goes on asking for more."""
    client = terrace.Client(str(daemon.socket), default_timeout_s=20)
    client.wait_connected(20)
    space = terrace.Space(model="more", revision="r1", dtype="bf16", layout="nhd", layers=1,
                          kv_heads=1, head_size=64, block_tokens=16, part_bytes=(16384,))
    group = client.open(terrace.SpaceGroup("more", [space]))
    leases = []
    for number in range(300):
        with contextlib.suppress(terrace.errors.TerraceError):
            leases.append(group.reserve(group.hash([number] * 16 * 10)))
        time.sleep(0.1)  # for as long as the rule wants it
    return client, leases


def check_health(directory, build, request_count, quiet_s):
    daemon = Daemon(directory, build, "healthy")
    prometheus = Prometheus(directory, [daemon])
    try:
        write_trace(directory / "trace.jsonl", request_count)
        daemon.terrace("trace", "record", "start")
        began = time.monotonic()
        bench = daemon.terrace("bench", "replay", "--trace", directory / "trace.jsonl",
                               "--block-bytes", BLOCK_BYTES, "--verify")
        print(f"      {bench['request_count']} requests, verified, in {bench['seconds']:.1f} s")
        recording = pathlib.Path(daemon.terrace("trace", "record", "stop")["path"])
        whole = directory / "recording.jsonl"
        with open(whole, "wb") as joined:  # the older half first
            for part in (recording.with_name(recording.name + ".1"), recording):
                if part.exists():
                    joined.write(part.read_bytes())
        check_agreement(daemon, bench, whole)
        check_page(daemon)
        time.sleep(max(0, quiet_s - (time.monotonic() - began)))
        took_s = time.monotonic() - began
        fired = {s["metric"]["alertname"] for s in prometheus.query(
            f'max_over_time(ALERTS{{alertstate="firing"}}[{int(took_s) + 60}s])')}
        scrapes = prometheus.query(f"count_over_time(up[{int(took_s) + 60}s])")
        check(not fired, f"0 alerts in {took_s:.0f} s, {took_s * SCALE / 60:.0f} minutes of the "
              f"rules' time, {scrapes[0]['value'][1]} scrapes" + (f": {fired}" if fired else ""))
        check_expressions(prometheus)
        turns = daemon.terrace("status")
        print(f"      longest turn {turns['turn_us_max']} us, {turns['turns_over_limit']} of "
              f"{turns['turns']} turns over 200 us")
    finally:
        prometheus.stop()
        daemon.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--short", action="store_true", help="5,000 requests, no faults")
    parser.add_argument("--requests", type=int, default=None)
    parser.add_argument("--faults", action="store_true", help="nothing but the faults")
    arguments = parser.parse_args()
    if not shutil.which("prometheus") or not shutil.which("promtool"):
        print("skipped: Debian's prometheus is not installed (tools/setup installs it)")
        return EXIT_SKIPPED
    build = arguments.build.resolve()
    with tempfile.TemporaryDirectory(prefix="terrace-metrics.") as directory:
        directory = pathlib.Path(directory)
        if not arguments.faults:
            check_health(directory, build, arguments.requests or (5000 if arguments.short
                                                                  else 100_000),
                         20 if arguments.short else 120)
        if not arguments.short:
            check_faults(directory, build)
    print(f"VERDICT: {'FAILED: ' + '; '.join(failures[:3]) if failures else 'OK'}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
