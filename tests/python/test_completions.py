"""`terrace completions`: bash completes with it; zsh and fish, where they are, can read theirs."""
import os
import shlex
import shutil
import subprocess

import pytest

from conftest import run_terrace


@pytest.fixture(scope="module", name="script")
def bash_script(tmp_path_factory):
    status, output, errors = run_terrace("completions", "bash")
    assert (status, errors) == (0, "")
    path = tmp_path_factory.mktemp("completions") / "terrace"
    path.write_text(output)
    return path


def complete(script, line, cwd="/"):
    """What bash offers at the end of `line`, whose words are separated as bash separates them."""
    words = line.replace("=", " = ").split(" ") if "=" in line else line.split(" ")
    commands = f"""
        source {shlex.quote(str(script))}
        COMP_WORDS=({' '.join(map(shlex.quote, words))})
        COMP_CWORD={len(words) - 1}
        _terrace
        printf '%s\\n' "${{COMPREPLY[@]}}"
        complete -p terrace >&2"""
    done = subprocess.run(["bash", "--norc", "-uc", commands], capture_output=True, text=True,
                          check=True, cwd=cwd)
    assert done.stderr == "complete -F _terrace terrace\n"
    return done.stdout.split("\n")[:-1] if done.stdout != "\n" else []


def verbs():
    listed = run_terrace("--help")[1].partition("Subcommands:\n")[2]
    return [line.split()[0] for line in listed.splitlines() if line.startswith("  ")
            and not line.startswith("   ")]


def test_bash_completes_every_verb(script):
    assert set(complete(script, "terrace ")) == set(verbs())
    assert complete(script, "terrace doc") == ["doctor"]
    assert complete(script, "terrace domain ") == ["new", "show"]
    assert complete(script, "terrace nonsense x") == []


def test_bash_completes_options_as_help_lists_them(script):
    for verb in verbs():
        text = run_terrace(verb, "--help")[1]
        offered = complete(script, f"terrace {verb} -")
        assert "--help" in offered
        for option in offered:
            assert option in text, f"{verb}: {option} is not in its --help"
    assert {"--json", "--sort", "--socket"} <= set(complete(script, "terrace ls --"))
    assert "--sort" not in complete(script, "terrace status --")
    assert set(complete(script, "terrace ls --so")) == {"--socket", "--sort"}


def test_bash_completes_values(script, tmp_path):
    assert complete(script, "terrace ls --sort ") == ["idle", "age", "size", "hits"]
    assert complete(script, "terrace ls --sort=i") == ["idle"]
    assert complete(script, "terrace ls --sort=") == ["idle", "age", "size", "hits"]
    assert complete(script, "terrace ls --limit ") == []
    assert complete(script, "terrace completions ") == ["bash", "zsh", "fish"]
    (tmp_path / "a file.toml").touch()
    assert complete(script, "terrace doctor --config a", cwd=tmp_path) == ["a file.toml"]
    # A value that is also a verb's name leads nowhere.
    assert "--sort" in complete(script, "terrace ls --group status --so")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_can_read_theirs(shell, tmp_path):
    status, output, _ = run_terrace("completions", shell)
    assert status == 0 and "doctor" in output
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = tmp_path / "script"
    path.write_text(output)
    subprocess.run([shell, "-n", path], check=True)


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(tmp_path):
    path = tmp_path / "script"
    path.write_text(run_terrace("completions", "fish")[1])

    def offered(line):
        commands = f"source {shlex.quote(str(path))}; complete -C {shlex.quote(line)}"
        done = subprocess.run(["fish", "--no-config", "-c", commands], capture_output=True,
                              text=True, check=True, env={**os.environ, "HOME": str(tmp_path)})
        return [offer.split("\t")[0] for offer in done.stdout.splitlines()]
    assert set(offered("terrace ")) == set(verbs())
    assert offered("terrace ls --sort i") == ["idle"]
    assert "--sort" not in offered("terrace status --so")
    assert "--sort" in offered("terrace ls --group status --so")


def test_another_shell_is_refused():
    status, _, errors = run_terrace("completions", "ksh")
    assert status == 2 and "ksh" in errors
