#!/usr/bin/env python3
"""The alert rules under promtool: silent in a healthy hour, and each fired by a fault of its own.
Beside them, one panel of the dashboard whose sum is easily wrong.

usage: tests/monitoring/alerts.py [RULES]

A fault is a few series that differ from those of a healthy host; the alert named beside it must
fire then, and no other. Exit status 77 when promtool is not installed.
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
RULES = ROOT / "systemd/monitoring/terrace-alerts.yml"
DASHBOARD = ROOT / "systemd/monitoring/terrace-dashboard.json"
EXIT_SKIPPED = 77
HOST = 'job="terrace",instance="h:9464"'
DOMAIN = f'{HOST},domain="default"'
HOUR = 60  # samples, one a minute
GIB = 1 << 30


def of_host(name, **labels):
    return name + "{" + ",".join([HOST, *(f'{k}="{v}"' for k, v in labels.items())]) + "}"


def of_domain(name, **labels):
    return name + "{" + ",".join([DOMAIN, *(f'{k}="{v}"' for k, v in labels.items())]) + "}"


def flat(value, count=2 * HOUR):
    return f"{value}x{count}"


def rising(step, first=0, count=2 * HOUR):
    """A counter that rises by so much a minute."""
    return f"{first}+{step}x{count}"


def then(value, other, at=HOUR):
    """One value for so many minutes, then another."""
    return f"{value}x{at - 1} {other}x{2 * HOUR - at}"


def jump(by, at=HOUR):
    """A counter that rises once."""
    return f"0x{at - 1} {by}x{2 * HOUR - at}"


def buckets(slow_share, per_minute=6000):
    """Acquires of which so many take between 66 ms and 131 ms, the rest 1 ms at most."""
    quick = round(per_minute * (1 - slow_share))
    name = "terrace_request_seconds_bucket"
    return {of_domain(name, verb="acquire", le=le): rising(step) for le, step in (
        ("0.001024", quick), ("0.065536", quick), ("0.131072", per_minute), ("+Inf", per_minute))}


# As daemon/telemetry/conditions.h names them.
CONDITIONS = re.findall(r'"(\w+)"', re.search(
    r"kConditionNames = \{(.*?)\};",
    (ROOT / "daemon/telemetry/conditions.h").read_text(), re.S)[1])
# Each condition has an alert; those that are not named here have TerraceDegraded.
ALERT_OF = {"drive_loses_places": "TerraceDriveLosesPlaces", "redis_away": "TerraceTierOff",
            "fenced_memory": "TerraceFencedMemory", "wrong_checksums": "TerraceWrongChecksums",
            "kv_events_off": "TerraceKvEventsOff"}


HEALTHY = {
    of_host("up"): flat(1),
    of_host("terrace_ready"): flat(1),
    of_host("terrace_start_time_seconds"): flat(1700000000),
    of_host("terrace_turn_seconds_count"): rising(60000),
    of_host("terrace_turns_over_limit_total"): rising(60),
    of_host("terrace_turn_seconds_sum"): rising(1),
    of_host("terrace_connections_refused_total", reason="too_fast"): flat(0),
    of_host("terrace_checksum_jobs_refused_total"): flat(0),
    of_host("terrace_arena_pages_lost_total"): flat(0),
    of_host("terrace_log_lines_dropped_total"): flat(0),
    of_domain("terrace_tier_healthy", tier="nvme"): flat(1),
    of_domain("terrace_tier_healthy", tier="redis"): flat(1),
    of_domain("terrace_tier_capacity_bytes", tier="dram"): flat(64 * GIB),
    of_domain("terrace_tier_capacity_bytes", tier="nvme"): flat(1000 * GIB),
    of_domain("terrace_tier_quarantined_bytes", tier="nvme"): flat(0),
    of_domain("terrace_tier_written_bytes_of_day", tier="nvme"): flat(100 * GIB),
    of_domain("terrace_tier_write_budget_bytes_of_day", tier="nvme"): flat(1000 * GIB),
    of_domain("terrace_corrupt_blocks_total"): flat(0),
    of_domain("terrace_refuted_blocks_total"): flat(0),
    of_domain("terrace_fenced_bytes"): flat(GIB),
    **{of_domain("terrace_degraded", condition=name): flat(0) for name in CONDITIONS},
    of_domain("terrace_inherited_bytes"): flat(0),
    of_domain("terrace_sealed_blocks_total"): rising(3000),
    of_domain("terrace_reserve_keys_refused_total", reason="no_space"): rising(3),
    of_domain("terrace_reserve_keys_refused_total", reason="exists"): rising(9000),
    of_domain("terrace_sessions_refused_total", reason="sessions_max"): flat(0),
    of_domain("terrace_leases_revoked_total"): flat(0),
    of_domain("terrace_acquire_blocks_asked_total"): rising(60000),
    of_domain("terrace_acquire_blocks_hit_total", tier="dram"): rising(30000),
    of_domain("terrace_acquire_blocks_hit_total", tier="nvme"): rising(6000),
    of_domain("terrace_acquire_blocks_lost_total"): rising(6),
    of_domain("terrace_shared_stores_total", tier="redis", result="dropped"): flat(0),
    of_domain("terrace_shared_stores_total", tier="redis", result="stored"): rising(3000),
    of_domain("terrace_shared_forgets_owed", tier="redis"): flat(0),
    of_domain("terrace_shared_erasures_owed", tier="redis"): flat(0),
    of_domain("terrace_kv_events_on"): flat(1),
    of_domain("terrace_kv_events_lost_total"): flat(0),
    of_domain("terrace_device_orders_wrong_total"): flat(0),
    **buckets(0),
}

# Scraped, and asked by nobody: its only turns are the scrapes', which the host is slow to run.
IDLE = {**HEALTHY,
        of_host("terrace_turn_seconds_count"): rising(60),
        of_host("terrace_turns_over_limit_total"): rising(50)}

# After an hour of health each of these, alone, for another.
FAULTS = {
    "TerraceDown": {of_host("up"): then(1, 0)},
    "TerraceNotReady": {of_host("terrace_ready"): then(1, 0)},
    "TerraceRestarts": {of_host("terrace_start_time_seconds"):
                        "100x59 200x9 300x9 400x40"},
    "TerraceTierOff": {of_domain("terrace_tier_healthy", tier="nvme"): then(1, 0)},
    "TerraceDriveLosesPlaces": {
        of_domain("terrace_tier_quarantined_bytes", tier="nvme"): then(0, 20 * GIB)},
    "TerraceCorruptBlocks": {of_domain("terrace_corrupt_blocks_total"): jump(3, 115)},
    "TerraceWrongChecksums": {of_domain("terrace_corrupt_blocks_total"): jump(3, 115),
                              of_domain("terrace_refuted_blocks_total"): jump(3, 115)},
    "TerraceFencedMemory": {of_domain("terrace_fenced_bytes"): then(GIB, 8 * GIB)},
    "TerraceNoSpace": {of_domain("terrace_reserve_keys_refused_total", reason="no_space"):
                       rising(300)},
    "TerraceSessionsRefused": {
        of_domain("terrace_sessions_refused_total", reason="sessions_max"): jump(1, 115)},
    "TerraceConnectionsRefused": {
        of_host("terrace_connections_refused_total", reason="too_fast"): rising(2)},
    "TerraceSlowTurns": {of_host("terrace_turns_over_limit_total"): rising(6000)},
    "TerraceSlowAcquire": buckets(0.02),
    "TerraceLoadsLate": {of_domain("terrace_acquire_blocks_lost_total"): rising(900)},
    "TerraceWriteBudgetExceeded": {
        of_domain("terrace_tier_written_bytes_of_day", tier="nvme"): then(1, 1150 * GIB)},
    "TerraceLeasesRevoked": {of_domain("terrace_leases_revoked_total"): jump(20, 115)},
    "TerraceChecksumsRefused": {of_host("terrace_checksum_jobs_refused_total"): rising(5)},
    "TerraceArenaPagesLost": {of_host("terrace_arena_pages_lost_total"): jump(1, 115)},
    "TerraceLogLinesDropped": {of_host("terrace_log_lines_dropped_total"): jump(9, 115)},
    "TerraceSharedBlocksDropped": {
        of_domain("terrace_shared_stores_total", tier="redis", result="dropped"): jump(9, 115)},
    "TerraceErasuresOwed": {
        of_domain("terrace_shared_erasures_owed", tier="redis"): then(0, 1, 40)},
    "TerraceKvEventsOff": {of_domain("terrace_kv_events_on"): then(1, 0)},
    "TerraceKvEventsLost": {of_domain("terrace_kv_events_lost_total"): jump(9, 115)},
    "TerraceDeviceOrdersWrong": {of_domain("terrace_device_orders_wrong_total"): jump(1, 115)},
}
# After a day of hits, in steps of five minutes: none any more.
DAY = 288
HIT_RATE_FELL = {
    of_domain("terrace_acquire_blocks_asked_total"): rising(1000, count=2 * DAY),
    of_domain("terrace_acquire_blocks_hit_total", tier="dram"):
        f"0+900x{DAY} {900 * DAY}+100x{DAY}",
}


# The same at a fiftieth of the day's traffic: a probe that is all cold.
IDLE_AT_NIGHT = {
    of_domain("terrace_acquire_blocks_asked_total"): f"0+1000x{DAY} {1000 * DAY}+20x{DAY}",
    of_domain("terrace_acquire_blocks_hit_total", tier="dram"):
        f"0+900x{DAY} {900 * DAY}+0x{DAY}",
}


def case(name, series, interval_min, end_min, firing):
    return {"name": name, "interval": f"{interval_min}m",
            "input_series": [{"series": s, "values": v} for s, v in series.items()],
            "promql_expr_test": [{
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{end_min}m",
                "exp_samples": [{"labels": f'{{alertname="{a}"}}', "value": 1} for a in firing]}]}


def use_of_tiers():
    """Two domains that fill a memory they share, and halves of a drive."""
    [panel] = [panel for panel in json.loads(DASHBOARD.read_text())["panels"]
               if panel.get("title") == "Use of each tier"]
    expr = re.sub(r"\$\w+", ".*", panel["targets"][0]["expr"])
    series = {}
    for domain, dram_gib, nvme_gib in (("chat", 48, 500), ("batch", 16, 250)):
        for tier, used, capacity in (("dram", dram_gib, 64), ("nvme", nvme_gib, 500)):
            labels = f'{HOST},domain="{domain}",tier="{tier}"'
            series[f"terrace_tier_used_bytes{{{labels}}}"] = flat(used * GIB)
            series[f"terrace_tier_capacity_bytes{{{labels}}}"] = flat(capacity * GIB)
    return {**case("use of tiers", series, 1, HOUR, []), "promql_expr_test": [{
        "expr": expr, "eval_time": f"{HOUR}m",
        "exp_samples": [{"labels": f'{{tier="{tier}"}}', "value": value}
                        for tier, value in (("dram", 1), ("nvme", 0.75))]}]}


def cases():
    yield use_of_tiers()
    for minute in range(5, 2 * HOUR, 5):
        yield case(f"healthy, minute {minute}", HEALTHY, 1, minute, [])
        yield case(f"idle, minute {minute}", IDLE, 1, minute, [])
    for alert, series in FAULTS.items():
        yield case(alert, {**HEALTHY, **series}, 1, 2 * HOUR - 1, [alert])
    seldom = {of_host("terrace_turns_over_limit_total"): rising(200),
              of_host("terrace_turn_seconds_count"): rising(200),
              of_host("terrace_turn_seconds_sum"): rising(2)}  # 10 ms each, three a second
    yield case("turns that are few and long", {**HEALTHY, **seldom}, 1, 2 * HOUR - 1,
               ["TerraceSlowTurns"])
    for condition in CONDITIONS:
        if condition not in ALERT_OF or condition == "fenced_memory":
            yield case(condition, {**HEALTHY, of_domain("terrace_degraded", condition=condition):
                                   then(0, 1)}, 1, 2 * HOUR - 1,
                       [ALERT_OF.get(condition, "TerraceDegraded")])
    both = {of_domain("terrace_degraded", condition="drive_off"): then(0, 1),
            of_domain("terrace_tier_healthy", tier="nvme"): then(1, 0)}
    yield case("one cause is one alert", {**HEALTHY, **both}, 1, 2 * HOUR - 1, ["TerraceTierOff"])
    yield case("TerraceHitRateFell", HIT_RATE_FELL, 5, 5 * (DAY + 16), ["TerraceHitRateFell"])
    yield case("no hits among few", IDLE_AT_NIGHT, 5, 5 * (DAY + 16), [])
    untold = {of_domain("terrace_degraded", condition="kv_events_off"): then(0, 1)}
    yield case("groups of which nothing is told", {**HEALTHY, **untold}, 1, 2 * HOUR - 1,
               ["TerraceKvEventsOff"])


def main():
    rules = pathlib.Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else RULES
    if not shutil.which("promtool"):
        print("skipped: promtool is not installed (tools/setup installs Debian's prometheus)")
        return EXIT_SKIPPED
    alerts = set(re.findall(r"- alert: (\w+)", rules.read_text()))
    faults = {*FAULTS, "TerraceHitRateFell", "TerraceDegraded"}
    if alerts != faults:
        print(f"alerts without a fault here: {sorted(alerts - faults)}; "
              f"faults without an alert: {sorted(faults - alerts)}")
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch) / "alerts_test.yml"  # JSON is YAML
        path.write_text(json.dumps({"rule_files": [str(rules)], "evaluation_interval": "1m",
                                    "tests": list(cases())}))
        for command in (["promtool", "check", "rules", str(rules)],
                        ["promtool", "test", "rules", str(path)]):
            result = subprocess.run(command, text=True, capture_output=True, check=False)
            if result.returncode != 0:
                print(f"{' '.join(command[:3])}: {result.stdout}{result.stderr}")
                return 1
    print(f"{len(alerts)} alerts: silent in a healthy hour, each fired by its fault alone")
    return 0


if __name__ == "__main__":
    sys.exit(main())
