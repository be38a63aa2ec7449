"""Spaces, without a daemon."""
import dataclasses

import pytest

import terrace
from terrace.space import part_bytes_of_layers

LLAMA = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
         "hidden_size": 4096, "torch_dtype": "bfloat16", "model_type": "llama"}


def test_a_llama_takes_what_its_attention_takes():
    space = terrace.Space.from_hf_config(LLAMA, revision="r")
    assert space.attention == "gqa" and space.head_size == 128
    # 2 planes x 32 layers x 8 heads x 128 elements x 2 bytes = 128 KiB a token
    assert space.block_bytes == 16 * 128 * 1024
    assert len(space.part_bytes) == 32
    half = terrace.Space.from_hf_config(LLAMA, revision="r", tp_rank=1, tp_size=2)
    assert half.block_bytes * 2 == space.block_bytes
    assert terrace.SpaceGroup("a", [space]).check() != terrace.SpaceGroup("a", [half]).check()


def test_an_mla_model_has_one_latent_a_token():
    space = terrace.Space.from_hf_config(
        {**LLAMA, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_hidden_layers": 61},
        revision="r")
    assert space.attention == "mla" and space.kv_heads == 1
    assert space.block_bytes == 61 * 576 * 16 * 2


def test_a_config_object_serves_as_well():
    config = type("Config", (), {**LLAMA, "to_dict": lambda self: LLAMA})()
    assert (terrace.Space.from_hf_config(config, revision="r")
            == terrace.Space.from_hf_config(LLAMA, revision="r"))


YARN = {"rope_type": "yarn", "factor": 8.0}


@pytest.mark.parametrize("other", [
    {"rope_theta": 1e6}, {"rope_scaling": YARN}, {"rope_scaling": {**YARN, "factor": 4.0}},
    {"sliding_window": 4096}, {"rms_norm_eps": 1e-5}, {"layer_types": ["a", "b"]},
    {"layer_types": ["b", "a"]}, {"tie": True}, {"tie": 1}, {"tie": "1"}, {"text_config": LLAMA},
    {"text_config": {**LLAMA, "torch_dtype": "float16"}}, {"eos_token_id": None}])
def test_a_configuration_that_computes_otherwise_has_a_space_of_its_own(other):
    def group_id(config, **more):
        space = terrace.Space.from_hf_config(config, revision="r", **more)
        return terrace.SpaceGroup("a", [space]).check()

    found = group_id({**LLAMA, **other})
    assert found == group_id(dict(reversed({**LLAMA, **other}.items())))
    assert len({found, group_id(LLAMA), group_id({**LLAMA, **other}, salt="x"),
                group_id({**LLAMA, **other}, adapter="sql-2")}) == 4
    others = {"rope_theta": 2e6, "rope_scaling": {**YARN, "factor": 2.0}, "tie": False}
    assert found != group_id({**LLAMA, **others})


def test_names_versions_and_the_type_of_weights_that_are_said_elsewhere_change_no_space():
    def space(**more):
        return terrace.Space.from_hf_config({**LLAMA, "inner": {"a": 1}, **more}, revision="r",
                                            model="m", dtype="bfloat16")

    assert space() == space(
        _name_or_path="/models/a", transformers_version="5.19.0", dtype="bfloat16",
        torch_dtype="torch.bfloat16", inner={"a": 1, "_name_or_path": "x", "use_cache": False})
    assert space(inner={"a": 2}) != space()


@pytest.mark.parametrize("said, sentence", [
    (object(), "of type object, of which not"), (type("C", (), LLAMA)(), "of type C, of which"),
    ({**LLAMA, "rope": {"scaling": object()}}, r"\['rope'\]\['scaling'\] is of type object"),
    ({**LLAMA, "heads": [1, {2}]}, r"\['heads'\]\[1\] is of type set"),
    ({**LLAMA, "labels": {0: "a", "0": "b"}}, "no texts, or are alike"),
    ({**LLAMA, "labels": {None: "a"}}, "no texts")])
def test_a_configuration_that_cannot_be_told_is_refused(said, sentence):
    with pytest.raises(terrace.Invalid, match=sentence):
        terrace.Space.from_hf_config(said, revision="r")


def test_a_configuration_within_itself_is_refused():
    said = dict(LLAMA)
    said["text_config"] = said
    with pytest.raises(terrace.Invalid, match="within itself"):
        terrace.Space.from_hf_config(said, revision="r")


def test_many_layers_share_parts():
    assert part_bytes_of_layers(128, 10) == (10,) * 128
    parts = part_bytes_of_layers(200, 10)
    assert len(parts) == 100 and sum(parts) == 2000
    parts = part_bytes_of_layers(257, 10)
    assert len(parts) <= 128 and sum(parts) == 2570


def test_what_cannot_be_is_refused_with_the_field():
    with pytest.raises(terrace.Invalid, match="num_attention_heads"):
        terrace.Space.from_hf_config({"num_hidden_layers": 1}, revision="r")
    with pytest.raises(terrace.Invalid, match="int3"):
        terrace.Space.from_hf_config(LLAMA, revision="r", dtype="int3")
    space = terrace.Space.from_hf_config(LLAMA, revision="")
    with pytest.raises(terrace.Invalid, match="revision"):
        terrace.SpaceGroup("a", [space]).check()
    with pytest.raises(terrace.Invalid, match="attention"):
        terrace.SpaceGroup("a", [terrace.Space(**{**space.__dict__, "attention": "x"})]).check()
    with pytest.raises(terrace.Invalid):
        terrace.SpaceGroup("a", []).check()


def test_a_codec_makes_another_space_of_smaller_parts():
    space = terrace.Space.from_hf_config(LLAMA, revision="r", layout="nhd")
    raw = 2 * 16 * 8 * 128 * 2  # keys and values of a layer
    assert space.engine_part_bytes == space.part_bytes == (raw,) * 32
    for codec, layer_bytes in ("int8", 18432 + 16640), ("fp8", 2 * 16640), ("int4", 12288 + 10240):
        encoded = space.encoded(codec, part_count=8)
        assert encoded.quantisation == "terrace:" + codec
        assert encoded.part_bytes == (4 * layer_bytes,) * 8
        assert encoded.engine_part_bytes == (4 * raw,) * 8
        names = {terrace.SpaceGroup("a", [each]).check() for each in (encoded, space)}
        assert len(names) == 2
    assert len(space.encoded("int8").part_bytes) == 32


def test_what_no_codec_encodes_is_refused_with_the_field():
    space = terrace.Space.from_hf_config(LLAMA, revision="r", layout="nhd")
    with pytest.raises(terrace.Invalid, match="int3"):
        space.encoded("int3")
    with pytest.raises(terrace.Invalid, match="layout"):
        terrace.Space.from_hf_config(LLAMA, revision="r").encoded("int8")
    with pytest.raises(terrace.Invalid, match="parts"):
        space.encoded("int8", part_count=33)
    with pytest.raises(terrace.Invalid, match="already"):
        space.encoded("int8").encoded("int4")
    wrong = dataclasses.replace(space.encoded("int8"), part_bytes=(4096,) * 32)
    with pytest.raises(terrace.Invalid, match="part_bytes"):
        terrace.SpaceGroup("a", [wrong]).check()


def test_what_c_would_cut_is_refused():
    space = terrace.Space.from_hf_config(LLAMA, revision="r", salt="a\0one")
    with pytest.raises(terrace.Invalid, match="salt"):
        terrace.SpaceGroup("a", [space]).check()
    with pytest.raises(terrace.Invalid, match="name"):
        terrace.SpaceGroup("a\0b", [terrace.Space.from_hf_config(LLAMA, revision="r")]).check()
    space = dataclasses.replace(space, salt="")
    for parts in ((1 << 64) + 4096, -1, 1.5):
        with pytest.raises(terrace.Invalid, match=r"part_bytes\[1\] is "):
            terrace.SpaceGroup("a", [dataclasses.replace(space, part_bytes=(64, parts))]).check()
    with pytest.raises(terrace.Invalid, match="part is 4294967296"):
        space.part_offset(1 << 32)
    wide = dataclasses.replace(space, head_size=space.head_size + (1 << 32))
    with pytest.raises(terrace.Invalid, match="head_size"):
        terrace.SpaceGroup("a", [wide]).check()
