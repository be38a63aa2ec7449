"""Every hook that vLLM has is in the documents' table, and the table says what the connector does.

TERRACE_VLLM: folders with a `vllm` in them, separated by colons; else that of tests/engines.
"""
import ast
import glob
import os
import pathlib
import re

import pytest

import vllm_driver  # noqa: F401  pylint: disable=unused-import  # puts the stand-in in place
import terrace.vllm
import terrace.vllm_tier
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, SupportsHMA
from vllm.v1.kv_offload.tiering.base import SecondaryTierManager

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLASSES = {
    "KVConnectorBase_V1": ("distributed/kv_transfer/kv_connector/v1/base.py", ["SupportsHMA"],
                           [KVConnectorBase_V1, SupportsHMA], terrace.vllm.TerraceConnector),
    "SecondaryTierManager": ("v1/kv_offload/tiering/base.py", [], [SecondaryTierManager],
                             terrace.vllm_tier.TerraceTier)}


def table(name):
    """What the documents say of each hook."""
    text = (ROOT / "docs" / "INTEGRATIONS.md").read_text()
    rows = text.split(f"<!-- hooks: {name} -->")[1].split("\n\n")[0].splitlines()[3:]
    said = {}
    for row in rows:
        _, hooks, what, why, _ = row.split("|")
        assert what.strip() in ("used", "answered", "default") and why.strip(), row
        for hook in re.findall(r"`(\w+)`", hooks):
            assert hook not in said, f"{hook} is named twice"
            said[hook] = what.strip()
    return said


def public(names):
    return {name for name in names if not name.startswith("_")}


def installed():
    folders = os.environ.get("TERRACE_VLLM", "").split(":")
    if folders == [""]:
        folders = glob.glob(str(ROOT / "build" / "engines" / "lib" / "python3*" / "site-packages"))
    return [path for path in map(pathlib.Path, folders) if (path / "vllm").is_dir()]


def hooks_of_source(path, names):
    """Read, not imported: vLLM needs its own libraries."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name in names:
            for each in node.body:
                if isinstance(each, ast.FunctionDef):
                    found.add(each.name)
                elif isinstance(each, ast.AnnAssign):
                    found.add(each.target.id)
    return public(found)


@pytest.mark.parametrize("name", CLASSES)
def test_the_table_says_what_the_class_does(name):
    _, _, bases, ours = CLASSES[name]
    said = table(name)
    own = public(set().union(*(vars(base) for base in bases)))
    for hook, what in said.items():
        has_it = any(hook in vars(each) for each in ours.__mro__ if each.__module__.startswith(
            "terrace."))
        assert has_it == (what != "default"), f"{hook}: the table says {what}"
    missing = own - set(said)
    assert not missing, f"the stand-in has {sorted(missing)}, and the table has not"
    assert set(said) <= own, f"the stand-in lacks {sorted(set(said) - own)}"


@pytest.mark.parametrize("name", CLASSES)
def test_the_table_has_every_hook_of_the_vllm_that_is_installed(name):
    path, mixins, _, _ = CLASSES[name]
    folders = installed()
    if not folders:
        pytest.skip("no vLLM here (tests/engines --install, or TERRACE_VLLM): the table of hooks "
                    "is compared with the stand-in alone")
    for folder in folders:
        found = hooks_of_source(folder / "vllm" / path, [name, *mixins])
        assert len(found) > 10, f"{folder} has no {name}"
        missing = found - set(table(name))
        assert not missing, f"the vLLM in {folder} has {sorted(missing)}, and the table has not"


def test_vllm_s_names_for_where_tokens_came_from():
    of = terrace.vllm.stats.hit_sources
    assert {source.value: count for source, count in of(
        {"dram": 8, "hbm": 8, "nvme": 16, "redis": 8}, 40).items()} == {
            "host": 16, "disk": 16, "external_unspecified": 8}
    assert {source.value: count for source, count in of({"dram": 8}, 16).items()} == {
        "external_unspecified": 16}
    assert of({}, 0) == {}
