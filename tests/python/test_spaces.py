"""`terrace spaces` and `terrace show` of a live daemon."""
import contextlib
import json
import time

import pytest

import terrace

from conftest import SPACE, run_terrace, store, wait_until_free


def ask(daemon, *arguments):
    status, output, errors = run_terrace(*arguments, "--json", "--socket", daemon.socket)
    assert (status, errors) == (0, ""), errors
    return json.loads(output)


def test_spaces_tells_what_groups_are_and_hold(daemon, client, group):
    client.open(terrace.SpaceGroup("empty", [SPACE.__class__(**{**vars(SPACE), "model": "other"})]))
    keys = store(group, list(range(64)))
    wait_until_free(group, keys)
    with group.acquire(keys):
        groups = {one["name"]: one for one in ask(daemon, "spaces")["groups"]}
        tiny, empty = groups["tiny"], groups["empty"]
        assert (tiny["block_count"], tiny["leased_count"], tiny["pinned_count"]) == (4, 4, 0)
        assert tiny["bytes_by_tier"] == {"hbm": 0, "dram": 4 * tiny["block_bytes"], "nvme": 0,
                                         "redis": 0}
        assert 0 <= tiny["idle_ms"] < 60_000
        (member,) = tiny["members"]
        assert member["spec"]["model"] == "tiny" and member["spec"]["dtype"] == "bf16"
        assert member["spec"]["part_bytes"] == "1x50000,1x20000"
        assert (empty["block_count"], empty["idle_ms"]) == (0, None)
        text = run_terrace("spaces", "--socket", daemon.socket)[1]
    assert "model=tiny revision=r1 dtype=bf16" in text
    assert "100.0 %" in text.splitlines()[1]
    only = ask(daemon, "spaces", "--group", "empty")["groups"]
    assert [one["name"] for one in only] == ["empty"]


def test_spaces_of_an_unknown_group_names_the_known(daemon, group):
    status, output, errors = run_terrace("spaces", "--group", "huge", "--socket", daemon.socket)
    assert (status, output) == (1, "")
    assert "tiny" in errors


def test_spaces_of_an_empty_domain_says_so(daemon, client):
    status, output, _ = run_terrace("spaces", "--socket", daemon.socket)
    assert status == 0 and output.startswith("no SpaceGroup in this domain")


def listed(daemon):
    blocks = ask(daemon, "ls")["blocks"]
    return sorted(blocks, key=lambda block: block["position"])


def test_show_tells_of_one_block(daemon, group):
    keys = store(group, list(range(64)))
    wait_until_free(group, keys)
    first, _, third, last = listed(daemon)
    group.pin(group.hash(list(range(64))))
    with group.acquire(keys):
        block = ask(daemon, "show", third["key"])
        assert block["key"] == third["key"] and block["parent"] == third["parent"]
        assert (block["position"], block["child_count"], block["lease_count"]) == (2, 1, 1)
        assert block["is_pinned"] and block["tiers"] == ["dram"] and block["state"] == "sealed"
        assert block["expires_in_s"] is None
        text = run_terrace("show", third["key"], "--socket", daemon.socket)[1]
    assert f"chain     2 blocks before it; parent {third['parent']}\n" in text
    assert "held by   1 lease, and pinned\n" in text
    assert "expires   never\n" in text
    assert "0 blocks before it; it has no parent here" in run_terrace(
        "show", first["key"], "--socket", daemon.socket)[1]
    assert ask(daemon, "show", last["key"])["child_count"] == 0


def test_show_says_where_a_key_is_unknown_and_why(daemon, group):
    keys = store(group, list(range(64)))
    wait_until_free(group, keys)
    key = listed(daemon)[3]["key"]
    run_terrace("evict", key, "--yes", "--socket", daemon.socket)
    status, output, errors = run_terrace("show", key, "--socket", daemon.socket)
    assert (status, output) == (1, "")
    assert f"no block {key} in domain default at {daemon.socket}" in errors
    assert "of group tiny, evicted by an operator" in errors
    status, _, errors = run_terrace("show", "0" * 31 + "1", "--socket", daemon.socket)
    assert status == 1 and "never stored there" in errors
    status, output, _ = run_terrace("show", "--json", key, "--socket", daemon.socket)
    assert status == 1 and json.loads(output)["state"] == "absent"


def test_show_refuses_what_is_no_key(daemon, client):
    status, _, errors = run_terrace("show", "abc", "--socket", daemon.socket)
    assert status == 2 and "32 hex digits" in errors
    assert run_terrace("show", "--socket", daemon.socket)[0] == 2


def test_models_that_a_domain_does_not_serve_are_refused(daemon, client, group):
    def allow(patterns):
        return run_terrace("config", "set", f"domain.default.allow_models={patterns}",
                           "--socket", daemon.socket)

    other = terrace.SpaceGroup("other", [SPACE.__class__(**{**vars(SPACE), "model": "other/one"})])
    assert allow('["tin?", "an*"]')[0] == 0
    with pytest.raises(terrace.Invalid, match="model 'other/one' of group 'other' is none of the 2 "
                                              "that domain 'default' serves"):
        client.open(other)
    assert len(store(group, list(range(32)))) == 2
    assert allow('["tiny", "other*"]')[0] == 0
    assert len(store(client.open(other), list(range(32)))) == 2
    assert "a list of 1 to 64 texts" in allow("[]")[2]


def test_a_model_that_is_allowed_again_is_served_to_those_who_wait(daemon, client, group):
    daemon.kill()
    with open(daemon.config, "a") as config:
        config.write(f'[[domain]]\nname = "default"\nsocket = "{daemon.socket}"\n'
                     'allow_models = ["other"]\n')
    daemon.start()
    deadline = time.monotonic() + 30
    while "none of the 1 that domain" not in client.last_error:
        assert time.monotonic() < deadline, client.last_error
        time.sleep(0.02)
    with pytest.raises(terrace.Gone, match="none of the 1 that domain"):
        store(group, list(range(32)))
    allowed = run_terrace("config", "set", 'domain.default.allow_models=["tiny"]',
                          "--socket", daemon.socket)
    assert allowed[0] == 0, allowed
    stored = []
    while len(stored) != 2:
        assert time.monotonic() < deadline, client.last_error
        with contextlib.suppress(terrace.Gone):
            stored = store(group, list(range(32)))
        time.sleep(0.02)
    assert group.match(stored).block_count == 2
