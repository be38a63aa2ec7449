"""LoRA adapters of the vLLM connector: which weights a request's adapter has, where it is certain.

vLLM's block hashes hold an adapter's name and path, which say nothing of its weights; a mask made
of its files' content does, and is laid over the hashes of its requests.

Why the mask is right (read in vLLM 0.32: lora/worker_manager.py, lora/lora_model.py): a worker
loads an adapter, by its id alone, from adapter_config.json and adapter_model.* in its directory
when the first step with that id runs, before that if a server preloads it, and once more after it
was evicted by others. So the files may be read at any moment after the engine's start, and never
are before it. They had the content of the mask at every such moment if nothing was changed from
before the start until a block that they led to is stored: a change sets ctime, which no program can
set back. The scheduler looks before it asks the daemon for a request's blocks, and each worker, on
its own machine, before it commits a store. Of a scheduler's turn one look at an adapter serves all
of its requests: each had come before it, and of a change within the turn no look could tell the
first of them. A look of an earlier turn serves those that have waited for it since, and no other,
however young it is: whoever has changed an adapter may send a request at once. And one id has to
mean one adapter, as LoRARequest asks for; a program that preloads one under the id of another gets
wrong answers from vLLM itself.

A directory may lie on a file system that hangs, so nothing here touches one but on threads for it
(looks.py). Until a look is answered its request waits, as for the daemon and as long, and then it
is computed.
"""
import dataclasses
import hashlib
import logging
import os
import time
from typing import Any, Dict, List, Optional, Tuple

from . import files
from .looks import FILES_MAX as _FILES_MAX
from .looks import AdapterFiles, Lines, Look, Looks, mount_of

logger = logging.getLogger("vllm.terrace")
# Before any engine of this process has loaded an adapter: it imports this to be made.
_STARTED_S = time.time()
_ADAPTERS_MAX = 4096
_BYTES_MAX = 16 << 30
_CHUNK_BYTES = 1 << 20
_RUNTIME_UPDATES = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
# Of a LoRARequest; what else one has in some version, and is set, may be another way to weights.
_FIELDS = ("lora_name", "lora_int_id", "lora_path", "base_model_name", "load_inplace",
           "is_3d_lora_weight")
_CAPACITIES = ("max_loras", "max_cpu_loras")  # the rest of the configuration may change weights


@dataclasses.dataclass
class _Adapter:
    """What the first request with an id, or a name and path, said."""
    said: Dict[str, Any]
    read: Optional[Tuple[AdapterFiles, bytes]] = None  # by its thread, and with it the mask
    files: Optional[AdapterFiles] = None  # of these the scheduler knows: not within a turn
    mask: Optional[bytes] = None
    refusal: Optional[str] = None
    look: Optional[Look] = None  # at its files, the last one that was asked for,
    looked_in: int = -1  # and the scheduler's turn in which it was
    waited_in: int = -1  # one turn waits for it once

    def refuse(self, why: str) -> None:
        """For good. Says so once."""
        if self.refusal is None:
            self.refusal = why
            logger.warning("terrace: requests with the LoRA adapter %r (id %s, %s) are served "
                           "without the cache: %s", self.said["lora_name"],
                           self.said["lora_int_id"], self.said["lora_path"], why)


class Adapters:
    """Of one engine, in its scheduler, daemon or not. THREADING: its own threads read the files,
    and others look at them; what they find is acted on where the scheduler asks."""

    def __init__(self, vllm_config: Any):
        configuration = getattr(vllm_config, "lora_config", None)
        self._configuration = sorted((name, str(value)) for name, value
                                     in (vars(configuration) if configuration else {}).items()
                                     if name not in _CAPACITIES)
        self._by_id: Dict[int, _Adapter] = {}
        self._by_place: Dict[Tuple[str, str], _Adapter] = {}
        self._readers = Lines("terrace-adapters")
        self._looks = Looks()
        self._unread: List[_Adapter] = []
        self._turn = 0

    def turn_ended(self) -> None:
        """The scheduler has asked for what it will run in this step."""
        self._turn += 1
        self._take_read()

    def _take_read(self) -> None:
        for adapter in self._unread:
            if adapter.read is not None:
                adapter.files, adapter.mask = adapter.read
        self._unread = [adapter for adapter in self._unread
                        if adapter.mask is None and adapter.refusal is None]

    def note(self, request: Any) -> None:
        """Has to see every request before vLLM runs it, and may see it again."""
        lora = getattr(request, "lora_request", None)
        if lora is None:
            return
        said, place = _said_by(lora), (lora.lora_name, lora.lora_path)
        of_id, of_place = self._by_id.get(lora.lora_int_id), self._by_place.get(place)
        known = of_id or of_place
        if known is None:
            if len(self._by_id) < _ADAPTERS_MAX:  # of more the first one is not known: none
                self._by_id[lora.lora_int_id] = self._by_place[place] = self._begun(said)
        elif of_id is not of_place or known.said != said:
            # One of them is computed with the other's weights, in vLLM's own prefix cache, too.
            for adapter in filter(None, (of_id, of_place)):
                adapter.refuse(f"there is a request with {said}, too: give each adapter a name and "
                               "an id of its own, and restart the engine")
            self._by_id[lora.lora_int_id] = self._by_place[place] = known

    def look(self, request: Any, awaited: Optional[Look], wait_s: float) -> Optional[Look]:
        """Has to be called in each turn before blocks of the request are asked for. Comes back with
        the look that it has to wait for, which is `awaited` in the next turn; with None when what
        mask_of says is so. wait_s: how long a turn may wait for an adapter."""
        lora = getattr(request, "lora_request", None)
        adapter = None if lora is None else self._by_id.get(lora.lora_int_id)
        self._take_read()
        if (adapter is None or adapter.files is None or adapter.mask is None
                or adapter.refusal is not None):
            return None
        if adapter.looked_in != self._turn:
            adapter.looked_in, adapter.look = self._turn, self._looks.look(adapter.files)
        look = awaited or adapter.look
        assert look is not None
        if look.is_unchanged is None and adapter.waited_in != self._turn:
            adapter.waited_in = self._turn
            look.wait(wait_s)
        if look.is_unchanged is False:
            adapter.refuse(_REMEDY.format("its files have changed"))
        return look if look.is_unchanged is None else None

    def mask_of(self, request: Any) -> Optional[bytes]:
        """Of the request's block hashes: empty without an adapter, None if it is not cached now."""
        lora = getattr(request, "lora_request", None)
        if lora is None:
            return b""
        adapter = self._by_id.get(lora.lora_int_id)
        return None if adapter is None or adapter.refusal is not None else adapter.mask

    def files_of(self, request: Any) -> Optional[AdapterFiles]:
        """What stores of the request depend on."""
        lora = getattr(request, "lora_request", None)
        return None if lora is None else self._by_id[lora.lora_int_id].files

    def _begun(self, said: Dict[str, Any]) -> _Adapter:
        adapter = _Adapter(said)
        why = _refusal_of(said)
        if why is not None:
            adapter.refuse(why)
            return adapter
        self._unread.append(adapter)
        self._readers.put(mount_of(said["lora_path"]), lambda: self._read_or_refuse(adapter))
        return adapter

    def wait_read(self) -> None:
        """Until the files of all that were noted have been read, or refused."""
        self._readers.join()
        self._take_read()

    def _read_or_refuse(self, adapter: _Adapter) -> None:
        try:
            self._read(adapter)
        except Exception as error:  # pylint: disable=broad-except
            adapter.refuse(f"{error}: give it a directory of its own, and restart")

    def _read(self, adapter: _Adapter) -> None:
        path = adapter.said["lora_path"]
        if not os.path.isdir(path):
            adapter.refuse(_NO_DIRECTORY)
            return
        names = files.names_in(path, _FILES_MAX)
        seen = files.looked_at(path, names)
        newest = max(seen, key=lambda about: about[-1])
        if newest[-1] > (_STARTED_S - files.CLOCKS_APART_S) * 1e9:
            adapter.refuse(_REMEDY.format(f"{newest[0]} is younger than this process"))
            return
        digest = hashlib.sha256(repr([self._configuration, adapter.said.get("is_3d_lora_weight")])
                                .encode())
        byte_count = sum(about[3] for about in seen)
        if byte_count > _BYTES_MAX:
            adapter.refuse(f"its directory holds {byte_count} bytes, and {_BYTES_MAX} are read: "
                           "leave in it what vLLM loads, and restart")
            return
        for name in names:
            digest.update(repr((name, *_content_of(os.path.join(path, name)))).encode())
        found = AdapterFiles.of(path, seen)
        if not found.is_unchanged:
            adapter.refuse(_REMEDY.format("its files changed while they were read"))
        else:
            adapter.read = found, digest.digest()

    def close(self) -> None:
        """Its threads end with what they do."""
        self._readers.close()
        self._looks.close()


_REMEDY = ("{}, so what vLLM has loaded is not certain: put new weights into a new directory, and "
           "restart the engine")
_NO_DIRECTORY = "its path is no absolute path of a local directory: name one, and restart"


def _said_by(lora: Any) -> Dict[str, Any]:
    names = getattr(lora, "__struct_fields__", None) or vars(lora)
    return {name: getattr(lora, name) for name in names}


def _refusal_of(said: Dict[str, Any]) -> Optional[str]:
    if os.environ.get(_RUNTIME_UPDATES, "").strip().lower() not in ("", "0", "false"):
        return (f"{_RUNTIME_UPDATES} is set, so weights may be exchanged under its requests: start "
                "without it, with --lora-modules")
    if said.get("load_inplace"):
        return "load_inplace exchanges the weights under its requests: give new ones a new id"
    for name, value in said.items():
        if name not in _FIELDS and value:
            return f"{name} is set, and may be where its weights are from: leave it out"
    return None if os.path.isabs(said["lora_path"]) else _NO_DIRECTORY


def _content_of(path: str) -> Tuple[int, str]:
    """(bytes, digest). Large reads leave other threads alone."""
    digest, byte_count = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            byte_count += len(chunk)
    return byte_count, digest.hexdigest()
