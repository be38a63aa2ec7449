"""Which weights an engine has: a name that others have, too, or one of its own where that is not
certain. Two engines of one name share blocks, so it errs towards sharing nothing."""
import hashlib
import json
import logging
import os
import pathlib
import re
import uuid
from typing import Any, Iterable, Optional

from . import files
from .worker import describe

logger = logging.getLogger("vllm.terrace")
# Of a file of weights that are read for its digest: some MiB, however large it is.
_PIECES, _PIECE_BYTES = 64, 64 << 10
_FILES_MAX = 4096
# vLLM's that read the model's directory, or the commit of a repository, and nothing else.
_READ_FORMATS = ("auto", "hf", "safetensors", "fastsafetensors", "instanttensor", "pt", "npcache",
                 "mistral", "bitsandbytes", "gguf", "runai_streamer", "runai_streamer_sharded",
                 "sharded_state")
_SAFETENSORS_FORMATS = ("auto", "hf", "safetensors", "fastsafetensors", "instanttensor",
                        "runai_streamer")
_IGNORED_BY_DEFAULT = ["original/**/*"]  # vLLM's own
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npz")


def revision_of(config: Any, model: Any = None) -> str:
    """A digest of what the weights come from; a random word if that is unknown. model: None: the
    model's own configuration."""
    model, load = model or config.model_config, config.load_config
    path = pathlib.Path(str(model.model))
    load_format = describe(getattr(load, "load_format", "")).rpartition(".")[2].lower()
    extra = getattr(load, "model_loader_extra_config", None)
    more = json.dumps(extra, sort_keys=True, default=str) if extra else ""
    ignored = getattr(load, "ignore_patterns", None)
    if ignored and ignored != _IGNORED_BY_DEFAULT:
        more += "\0without " + json.dumps(ignored, default=str)
    if load_format == "dummy":
        seed = getattr(model, "seed", 0)
        return f"dummy-{seed}-" + _digest_of([path / "config.json"])
    if getattr(model, "model_weights", ""):
        return _private(config, model, f"its weights are at {model.model_weights}")
    if load_format not in _READ_FORMATS:
        return _private(config, model, f"--load-format {load_format} says where its weights are")
    if path.is_dir():
        try:
            names = files.names_in(str(path), _FILES_MAX)
            if not any(pathlib.PurePath(name).suffix in _WEIGHTS for name in names):
                return _private(config, model, f"there are no files of weights in {path}")
            more += _of_format(load_format, names)
            digest = _digest_of([path / name for name in names], more)
            why = _doubt(path, names)  # behind the digest: of what changes before it is young
        except OSError as error:
            why = str(error)
        return "files-" + digest if why is None else _private(config, model, why)
    if load_format not in ("auto", "safetensors"):  # which of a repository's files: nobody sees
        more += f"\0{load_format}"
    # Of a configuration from elsewhere the commit is that place's.
    is_own = getattr(model, "hf_config_path", None) in (None, "", model.model)
    for commit in (getattr(model.hf_config, "_commit_hash", None) if is_own else None,
                   model.revision):
        if re.fullmatch("[0-9a-f]{40}", str(commit)):  # a branch or a tag moves
            return str(commit) + (f"-{_digest_of((), more)}" if more else "")
    return _private(config, model, "no commit of it is known")


def _of_format(load_format: str, names: Iterable[str]) -> str:
    """Empty where all that may be read are the same files; else formats choose among files of
    several kinds, which may be other weights."""
    weights = [pathlib.PurePath(name) for name in names
               if pathlib.PurePath(name).suffix in _WEIGHTS]
    is_one_kind = all(path.suffix == ".safetensors" and not path.name.startswith("consolidated")
                      for path in weights)
    return "" if is_one_kind and load_format in _SAFETENSORS_FORMATS else f"\0{load_format}"


def _private(config: Any, model: Any, why: str) -> str:
    logger.warning("terrace: the revision of %s is unknown, since %s: nothing is shared with "
                   "others. Name it as 'revision' in kv_connector_extra_config", model.model, why)
    engine = getattr(config.kv_transfer_config, "engine_id", None)  # one for all ranks
    return f"private-{engine or uuid.uuid4().hex}"


def _doubt(path: pathlib.Path, names: Iterable[str]) -> Optional[str]:
    """Why the directory may not hold the weights that were loaded from it; None: it does. A change
    sets ctime, which no program can set back; and this process has read them after it began."""
    seen = files.looked_at(os.path.abspath(path), names)
    newest = max(seen, key=lambda about: about[-1])
    if newest[-1] > (files.process_started_s() - files.CLOCKS_APART_S) * 1e9:
        return (f"{newest[0]} is younger than this process, which may have loaded what was there "
                "before (put new weights into a new directory, and restart the engine)")
    return None


def _digest_of(paths: Iterable[pathlib.Path], more: str = "") -> str:
    """Of names, sizes and content; of what is large, its time and pieces all over it. Another model
    of the same shape has files of the same names and sizes, and where images are built to be
    reproducible, or copies keep no times, of the same time; its weights differ everywhere."""
    digest = hashlib.sha256(more.encode())
    for path in paths:
        if not path.is_file():
            continue
        about = path.stat()
        digest.update(f"{path.name} {about.st_size}\n".encode())
        if about.st_size <= _PIECES * _PIECE_BYTES:
            digest.update(path.read_bytes())
            continue
        digest.update(str(about.st_mtime_ns).encode())
        with path.open("rb", buffering=0) as file:
            for piece in range(_PIECES):  # the first and the last bytes among them
                offset = piece * (about.st_size - _PIECE_BYTES) // (_PIECES - 1)
                digest.update(os.pread(file.fileno(), _PIECE_BYTES, offset))
    return digest.hexdigest()[:32]
