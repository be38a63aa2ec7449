"""Tools of root judge what the installed unit's user finds, in a mount namespace with a unit."""
import json
import os
import subprocess

import pytest

from conftest import LONG_S, terrace_path

# Its user is one that every host has. All that it names lies on file systems of this test's own.
SETUP = """
set -e
mount -t tmpfs none /run
mount -t tmpfs none /var/lib
mkdir -p /run/systemd/system /run/site/drive/default /var/lib/terrace-unit
cat > /run/systemd/system/terraced.service <<END
[Service]
ExecStart=/usr/bin/terraced --config /run/site/terraced.toml
User=nobody
StateDirectory=terrace-unit
END
cat > /run/site/terraced.toml <<END
[daemon]
dram_bytes = "64MiB"
segment_bytes = "8MiB"
[nvme]
paths = ["/run/site/drive"]
capacity_bytes = "64MiB"
slab_bytes = "4MiB"
[[domain]]
name = "default"
socket = "/run/site/default.sock"
END
"$TERRACE" domain new /var/lib/terrace-unit/default.secret > /dev/null
chown -R nobody: /var/lib/terrace-unit /run/site/drive
unset HOME XDG_STATE_HOME XDG_RUNTIME_DIR STATE_DIRECTORY TERRACE_SOCKET
set +e
"""
KEYS = """
(umask 077; echo terrace-key-1 $(printf %02x $(seq 10 41)) > /run/site/keys)
echo 'encryption_keys_file = "/run/site/keys"' >> /run/site/terraced.toml
"""
CHECK = '"$TERRACED" --check-config --config /run/site/terraced.toml'
AS_USER = "setpriv --reuid nobody --regid nogroup --clear-groups"


def in_namespace(script):
    environment = {**os.environ, "TERRACE": str(terrace_path())}
    return subprocess.run(["unshare", "--mount", "bash", "-c", SETUP + script], env=environment,
                          capture_output=True, text=True, check=False, timeout=LONG_S * 2,
                          stdin=subprocess.DEVNULL)


def has_namespaces():
    return os.getuid() == 0 and in_namespace("exit 7").returncode == 7


pytestmark = pytest.mark.skipif(not has_namespaces(), reason="it may not mount anything")


def doctor(script=""):
    done = in_namespace(script + '"$TERRACE" doctor --json')
    assert done.stderr == "", done.stderr
    rows = {}
    for row in json.loads(done.stdout)["findings"]:
        rows.setdefault(row["check"], []).append(row)
    return rows


def test_doctor_takes_the_units_file_state_and_user():
    rows = doctor()
    assert rows["configuration"][0]["found"].startswith("/run/site/terraced.toml: 1 domain")
    assert rows["directory"][0]["found"] == "/var/lib/terrace-unit (state_dir): writable for nobody"
    assert rows["secret"][0]["level"] == "ok"
    assert "/var/lib/terrace-unit/default.secret" in rows["secret"][0]["found"]


def test_doctor_does_not_call_well_what_only_root_may_read():
    rows = doctor(KEYS + "chown root: /var/lib/terrace-unit/default.secret\n"
                         "chmod 600 /run/site/terraced.toml\n")
    for check in ("configuration", "secret", "keys"):
        assert rows[check][0]["level"] == "problem", rows[check]
        assert "nobody may not read it" in rows[check][0]["found"]
        assert "chown nobody: /" in rows[check][0]["remedy"]
    rows = doctor(KEYS + "chown nobody: /run/site/keys\n")
    assert rows["keys"][0]["level"] == "ok", rows["keys"]


def test_a_check_of_the_units_file_is_made_as_its_user():
    assert in_namespace(CHECK).returncode == 0
    for root_only, named in (("/var/lib/terrace-unit/default.secret", "secret file"),
                             ("/run/site/terraced.toml", "configuration file"),
                             ("/run/site/keys", "encryption keys file")):
        done = in_namespace(KEYS + "chown nobody: /run/site/keys\n"
                            f"chown root: {root_only}; chmod 600 {root_only}\n{CHECK}")
        assert done.returncode == 2 and named in done.stderr, done
        assert "Permission denied" in done.stderr and "found as nobody" in done.stderr
    done = in_namespace(KEYS + "chown nobody: /run/site/keys\n" + CHECK)
    assert (done.returncode, done.stderr) == (0, ""), done
    # Of another file nobody knows whose it will be.
    done = in_namespace("cp /run/site/terraced.toml /run/site/draft.toml; "
                        "chmod 600 /run/site/draft.toml\n" + CHECK.replace("terraced.t", "draft.t"))
    assert done.returncode == 0, done


def test_fsck_of_root_goes_on_as_the_drives_user():
    for who in ("", AS_USER):
        done = in_namespace(f'{who} "$TERRACE" fsck --repair --yes; status=$?\n'
                            "find /run/site/drive -user root; exit $status")
        assert (done.returncode, done.stderr) == (0, ""), done
        assert done.stdout.splitlines()[-1] == "clean", done.stdout
