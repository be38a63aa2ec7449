"""Recorded request traces, as `terrace replay` takes them, for the checks that replay one."""
import gzip
import json


def requests_of(path):
    """(seconds since the first, ids of full blocks, why it ended or None, session or None) of each
    request, in the order of their times."""
    opened = gzip.open(path, "rt") if path.endswith(".gz") else open(path, encoding="utf-8")
    with opened as lines:
        rows = [json.loads(line) for line in lines]
    block_tokens = 256 if "session_id" in rows[0] else 512
    rows.sort(key=lambda row: row["timestamp"])
    for row in rows:
        yield ((row["timestamp"] - rows[0]["timestamp"]) / 1000,
               row["hash_ids"][:row["input_length"] // block_tokens], row.get("stop"),
               row.get("session_id"))
