"""Which weights an engine has, and what it computes of them: what two engines share."""
import os
import random
import subprocess
import sys
import time
import types

import pytest

from vllm_driver import LONG_S, terrace


def test_what_options_override_is_part_of_the_space():
    def salt(**named):
        named = {"hf_config": None, "dtype": "torch.bfloat16", "quantization": None, **named}
        return terrace.vllm.model.computation_of(types.SimpleNamespace(**named))

    def configured(theta):
        return types.SimpleNamespace(to_dict=lambda: {"rope_theta": theta})

    assert salt(hf_config=configured(1e4)) == salt(hf_config=configured(1e4))
    assert len({salt(), salt(dtype="torch.float16"), salt(quantization="fp8"),
                salt(hf_config=configured(1e4)), salt(hf_config=configured(1e6)),
                salt(max_model_len=4096), salt(compute_hash=lambda: "1"),
                salt(multimodal_config=types.SimpleNamespace(video_pruning_rate=0.5)),
                salt(multimodal_config=types.SimpleNamespace(video_pruning_rate=0.5,
                                                             video_pruning_method="x"))}) == 9

    def media(**named):
        return salt(multimodal_config=types.SimpleNamespace(**named))

    assert len({media(), media(mm_processor_kwargs={"do_rescale": False}),
                media(mm_processor_kwargs={"do_rescale": True}),
                media(media_io_kwargs={"video": {"num_frames": 8}}),
                media(media_io_kwargs={"video": {"num_frames": 9}})}) == 5
    assert media(mm_processor_kwargs=None, media_io_kwargs={}) == media()
    assert media(mm_processor_kwargs={"a": 1, "b": 2}) == media(
        mm_processor_kwargs={"b": 2, "a": 1})


@pytest.mark.parametrize("commit, revision, is_known", [
    ("0123456789" * 4, None, True), (None, "0123456789" * 4, True), (None, "main", False),
    (None, "0123456789" * 4 + "-dirty", False)])
def test_a_branch_is_no_revision(commit, revision, is_known):
    config = types.SimpleNamespace(
        load_config=types.SimpleNamespace(load_format="auto"),
        model_config=types.SimpleNamespace(model="somebody/something", revision=revision,
                                           hf_config=types.SimpleNamespace(_commit_hash=commit)),
        kv_transfer_config=types.SimpleNamespace(engine_id="one"))
    found = terrace.vllm.model.revision_of(config)
    assert (found == "0123456789" * 4) == is_known
    assert terrace.vllm.model.revision_of(config) == found  # on every rank of the engine
    config.kv_transfer_config.engine_id = "another"
    assert (terrace.vllm.model.revision_of(config) == found) == is_known


class Models:
    """Directories of models, old enough to be believed."""

    def __init__(self, directory, monkeypatch):
        self.directory = directory
        monkeypatch.setattr(terrace.vllm.files, "process_started_s", lambda: time.time() + 60)

    def put(self, name, weights, seconds=0, file_name="model.safetensors"):
        (self.directory / name).mkdir(exist_ok=True)
        file = self.directory / name / file_name
        file.write_bytes(weights)
        os.utime(file, (seconds, seconds))
        return self.revision(name)

    def start(self, monkeypatch):
        """The process is younger than what there is; what comes after this is younger than it."""
        started_s = (max(path.lstat().st_ctime for path in self.directory.rglob("*"))
                     + terrace.vllm.files.CLOCKS_APART_S + 0.05)
        monkeypatch.setattr(terrace.vllm.files, "process_started_s", lambda: started_s)
        time.sleep(0.2)

    def revision(self, name, load_format="auto", extra=None, ignored=None, **of_model):
        return terrace.vllm.model.revision_of(types.SimpleNamespace(
            load_config=types.SimpleNamespace(load_format=load_format,
                                              model_loader_extra_config=extra,
                                              ignore_patterns=ignored),
            model_config=types.SimpleNamespace(model=str(self.directory / name), **of_model),
            kv_transfer_config=types.SimpleNamespace(engine_id="one")))


@pytest.fixture(name="models")
def models_fixture(tmp_path, monkeypatch):
    return Models(tmp_path, monkeypatch)


def test_weights_of_the_same_names_sizes_and_times_are_told_apart(models):
    large = 8 << 20
    one, another = random.Random(1).randbytes(large), random.Random(2).randbytes(large)
    found = models.put("a", one)
    assert found.startswith("files-") and models.put("copy", one) == found
    assert models.put("later", one, seconds=1) != found
    # A sixteenth of them is trained further, wherever it lies.
    for i in range(16):
        part = slice(i * large // 16, (i + 1) * large // 16)
        tuned = bytearray(one)
        tuned[part] = another[part]
        assert models.put(f"tuned-{i}", tuned) != found, i
    for name, flipped in (("first", 0), ("last", large - 1)):
        changed = bytearray(one)
        changed[flipped] ^= 1
        assert models.put(name, changed) != found, name


def test_a_format_chooses_among_weights_of_several_kinds(models):
    only = models.put("only", b"base")
    assert {models.revision("only", each) for each in ("auto", "safetensors")} == {only}
    models.put("both", b"base")
    found = models.put("both", b"tuned", file_name="pytorch_model.bin")
    assert len({found, models.revision("both", "safetensors"), models.revision("both", "pt"),
                models.revision("both", ignored=["*.safetensors"])}) == 4
    assert models.revision("both", ignored=["original/**/*"]) == found, "vLLM's own"


def test_weights_that_are_not_surely_those_of_the_directory_are_nobody_elses(models, monkeypatch,
                                                                             caplog):
    found = models.put("a", b"weights")
    private = "private-one"
    assert models.revision("a", model_weights="s3://bucket/latest") == private
    assert models.revision("a", load_format="tensorizer") == private
    assert models.revision("a", load_format="LoadFormat.SAFETENSORS") == found
    assert models.revision("a", extra={"pattern": "x"}) not in (found, private)
    (models.directory / "configured").mkdir()
    (models.directory / "configured" / "config.json").write_text("{}")
    assert models.revision("configured") == private
    (models.directory / "link").symlink_to("a")
    assert models.revision("link") == found
    # Whoever changes it while an engine starts may be too late for what was loaded.
    started_s = time.time() - 60
    monkeypatch.setattr(terrace.vllm.files, "process_started_s", lambda: started_s)
    assert models.revision("a") == private
    assert "model.safetensors is younger than this process" in caplog.text


def test_names_sizes_and_content_of_small_files_are_part_of_a_revision(models):
    found = models.put("a", b"1")
    assert models.put("b", b"2") != found
    assert models.put("c", b"1", file_name="model-1.safetensors") != found
    models.put("two", b"1")
    two = models.put("two", b"2", file_name="n.bin")
    assert two not in (found, models.put("one", b"1n.bin\n2"))


@pytest.mark.parametrize("change", [
    lambda place: (place / "a" / "more.bin").unlink(),
    lambda place: (place / "link").rename(place / "old") and (place / "link").symlink_to("a"),
    lambda place: (place / "a" / "more.bin").write_bytes(b"x"),
    lambda place: (place / "a" / "third.bin").symlink_to("nowhere")])
def test_what_changes_behind_the_start_of_a_process_is_not_what_it_loaded(models, monkeypatch,
                                                                          change):
    models.put("a", b"weights")
    models.put("a", b"more", file_name="more.bin")
    (models.directory / "link").symlink_to("a")
    models.start(monkeypatch)
    assert models.revision("link").startswith("files-")
    change(models.directory)
    assert models.revision("link") == "private-one"


def test_a_directory_that_cannot_be_looked_at_is_nobody_elses(models, monkeypatch):
    models.put("a", b"weights")
    assert models.put("a", b"more", file_name="more.bin").startswith("files-")
    with monkeypatch.context() as patch:
        patch.setattr(terrace.vllm.revision, "_FILES_MAX", 1)
        assert models.revision("a") == "private-one"
    (models.directory / "a" / "third.bin").symlink_to("nowhere")
    assert models.revision("a") == "private-one"


def test_random_weights_are_known_by_their_seed_and_configuration(models):
    def revision(name, seed=0):
        return models.revision(name, load_format="dummy", seed=seed)

    for name, theta in ("a", 1), ("b", 2), ("c", 1):
        models.put(name, b"", file_name="config.json")
        (models.directory / name / "config.json").write_text(f'{{"rope_theta": {theta}}}')
    assert revision("a") == revision("c") and revision("a").startswith("dummy-0-")
    assert len({revision("a"), revision("b"), revision("a", seed=1)}) == 3


def test_weights_that_change_while_they_are_read_are_nobody_elses(models, monkeypatch):
    models.put("a", b"weights")
    file = models.directory / "a" / "model.safetensors"
    models.start(monkeypatch)
    assert models.revision("a").startswith("files-")
    digest_of = terrace.vllm.revision._digest_of

    def late(*of):
        file.write_bytes(b"others!")
        return digest_of(*of)

    monkeypatch.setattr(terrace.vllm.revision, "_digest_of", late)
    assert models.revision("a") == "private-one"


def test_a_directory_is_listed_once(models, monkeypatch):
    lists, scandir = [], os.scandir
    models.put("a", b"weights")
    for name in ("scandir", "listdir"):
        monkeypatch.setattr(os, name, lambda *of: lists.append(of) or scandir(*of))
    assert models.revision("a").startswith("files-") and len(lists) == 1
    os.mkfifo(models.directory / "a" / "pipe")  # nobody would write into it
    assert models.revision("a").startswith("files-")


def test_a_configuration_from_elsewhere_says_nothing_of_the_weights(models):
    commit = "0123456789" * 4

    def revision(hf_config_path, extra=None):
        return models.revision("none", hf_config=types.SimpleNamespace(_commit_hash=commit),
                               hf_config_path=hf_config_path, revision=None, extra=extra)

    assert revision(None) == revision(str(models.directory / "none")) == commit
    assert revision("somebody/else") == "private-one"
    found = {revision(None, extra) for extra in (None, {"pattern": "x"}, {"pattern": "y"})}
    assert len(found) == 3 and all(each.startswith(commit) for each in found)


def test_a_process_knows_when_it_began():
    began = time.time()
    program = ("import runpy, sys, time; time.sleep(1.0)\n"
               "print(runpy.run_path(sys.argv[1])['process_started_s']())")
    said = subprocess.run([sys.executable, "-c", program, terrace.vllm.files.__file__],
                          capture_output=True, check=True, timeout=LONG_S)
    assert began - 0.1 < float(said.stdout) < began + 0.9
