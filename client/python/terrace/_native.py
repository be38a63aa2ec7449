"""terrace.h for ctypes: the structs and functions of libterrace.so, nothing more.

The library is looked for in this order: the file that TERRACE_LIBRARY names, beside this module (a
wheel brings it), and where the system's linker looks.
"""
import ctypes
import ctypes.util
import os
import pathlib
from ctypes import (CFUNCTYPE, POINTER, Structure, c_char_p, c_double, c_int, c_int32, c_size_t,
                    c_uint8, c_uint16, c_uint32, c_uint64, c_void_p)
from typing import Any, Dict, Iterator, Optional, Tuple

ABI_VERSION = 4
PRIORITY_UNSET = 255


class Id(Structure):
    _fields_ = [("low", c_uint64), ("high", c_uint64)]

    def __str__(self) -> str:
        """32 digits, as `terrace show` takes them."""
        return f"{self.high:016x}{self.low:016x}"

    def __repr__(self) -> str:
        return f"Id({self})"


class _Versioned(Structure):
    """A struct that begins with its own size."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(struct_bytes=ctypes.sizeof(type(self)), **fields)


class ClientOptions(_Versioned):
    _fields_ = [("struct_bytes", c_uint32), ("default_deadline_us", c_uint32),
                ("socket_path", c_char_p), ("client_name", c_char_p),
                ("reconnect_backoff_ms_max", c_uint32), ("pending_requests_max", c_uint32),
                ("send_buffer_bytes_max", c_uint64), ("reply_spin_us", c_uint32),
                ("reserved", c_uint32), ("pinned_bytes_max", c_uint64), ("device", c_void_p)]


class Space(_Versioned):
    _fields_ = [("struct_bytes", c_uint32), ("attention", c_uint32),
                ("model", c_char_p), ("revision", c_char_p), ("adapter", c_char_p),
                ("dtype", c_char_p), ("quantisation", c_char_p), ("layout", c_char_p),
                ("salt", c_char_p), ("part_bytes", POINTER(c_uint64)), ("part_count", c_uint32),
                ("layers", c_uint32), ("kv_heads", c_uint32), ("head_size", c_uint32),
                ("window_tokens", c_uint32), ("block_tokens", c_uint32),
                ("tp_rank", c_uint32), ("tp_size", c_uint32), ("pp_rank", c_uint32),
                ("pp_size", c_uint32), ("cp_rank", c_uint32), ("cp_size", c_uint32),
                ("attention_group", c_uint32), ("is_remote", c_uint32)]


class GroupSpec(_Versioned):
    _fields_ = [("struct_bytes", c_uint32), ("member_count", c_uint32), ("name", c_char_p),
                ("members", POINTER(POINTER(Space)))]


class Request(_Versioned):
    _fields_ = [("struct_bytes", c_uint32), ("flags", c_uint32), ("deadline_us", c_uint64),
                ("member_mask", c_uint64), ("parent", Id), ("first_position", c_uint32),
                ("recompute_ns_per_token", c_uint32), ("session_hash", c_uint64),
                ("ttl_s", c_uint32), ("min_tokens", c_uint32), ("expected_reuse_ms", c_uint32),
                ("end_reason", c_uint8), ("priority", c_uint8), ("hint_flags", c_uint8),
                ("reserved", c_uint8), ("event_hashes", POINTER(c_uint64)),
                ("load_deadline_us", c_uint64)]

    def __init__(self, **fields: Any) -> None:
        fields.setdefault("priority", PRIORITY_UNSET)
        super().__init__(**fields)


class MatchResult(_Versioned):
    _fields_ = [("struct_bytes", c_uint32), ("block_count", c_uint32), ("token_count", c_uint32),
                ("is_bound", c_uint32)]


class ReadLease(Structure):
    _fields_ = [("opaque", c_uint64 * 4)]


class Span(Structure):
    _fields_ = [("first_block", c_uint32), ("block_count", c_uint32), ("state", c_uint8),
                ("tier", c_uint8), ("reserved", c_uint16), ("eta_us", c_uint32)]


class WriteLease(Structure):
    _fields_ = [("opaque", c_uint64 * 4)]


class ReservedKey(Structure):
    _fields_ = [("status", c_int32), ("writer_age_ms", c_uint32), ("commit_id", c_uint64)]


class Completion(_Versioned):
    _fields_ = [("struct_bytes", c_uint32), ("kind", c_uint32), ("user_data", c_uint64),
                ("status", c_int32), ("block_count", c_uint32), ("read_lease", ReadLease),
                ("write_lease", WriteLease)]


class QueriedBlock(Structure):
    _fields_ = [("state", c_uint8), ("tier_mask", c_uint8), ("priority", c_uint8),
                ("flags", c_uint8), ("lease_count", c_uint32), ("commit_id", c_uint64)]


class EvictResult(_Versioned):
    _fields_ = [("struct_bytes", c_uint32), ("reserved", c_uint32), ("block_count", c_uint64),
                ("byte_count", c_uint64), ("skipped_count", c_uint64)]


class DeviceOptions(_Versioned):
    _fields_ = [("struct_bytes", c_uint32), ("device_index", c_uint32), ("backend", c_char_p),
                ("plugin_path", c_char_p), ("worker_count", c_uint32), ("reserved", c_uint32)]


class Rope(_Versioned):
    _fields_ = [("struct_bytes", c_uint32), ("rot_dim", c_uint32), ("rot_offset", c_uint32),
                ("flags", c_uint32), ("pairing", c_char_p), ("scaling", c_char_p),
                ("inv_freq", POINTER(c_double))]


class PagesLayout(_Versioned):
    _fields_ = [("struct_bytes", c_uint32), ("layer_count", c_uint32), ("plane_count", c_uint32),
                ("page_tokens", c_uint32), ("block_tokens", c_uint32), ("head_count", c_uint32),
                ("head_bytes", c_uint64), ("page_count", c_uint64),
                ("block_stride_bytes", c_uint64), ("plane_stride_bytes", c_uint64),
                ("token_stride_bytes", c_uint64), ("head_stride_bytes", c_uint64),
                ("layer_stride_bytes", c_uint64), ("addresses", POINTER(c_uint64)),
                ("address_count", c_uint32), ("flags", c_uint32), ("rope", POINTER(Rope))]


class Tensor(_Versioned):
    _fields_ = [("struct_bytes", c_uint32), ("dimension_count", c_uint32),
                ("shape", POINTER(c_uint64)), ("stride_bytes", POINTER(c_uint64)),
                ("item_bytes", c_uint64), ("axes", c_char_p)]


class Edge(Structure):
    _fields_ = [("kind", c_uint32), ("reserved", c_uint32), ("stream", c_void_p)]


class PageList(_Versioned):
    _fields_ = [("struct_bytes", c_uint32), ("member", c_uint32), ("first", c_uint32),
                ("count", c_uint32), ("page_indexes", POINTER(c_uint64)),
                ("positions", POINTER(c_uint32))]


# Structs by their name in terrace.h, so that a test can compare sizes and offsets.
STRUCTS = {
    "terrace_id": Id, "terrace_client_options": ClientOptions, "terrace_space": Space,
    "terrace_group_spec": GroupSpec, "terrace_request": Request,
    "terrace_match_result": MatchResult, "terrace_read_lease": ReadLease,
    "terrace_span": Span, "terrace_write_lease": WriteLease, "terrace_reserved_key": ReservedKey,
    "terrace_completion": Completion, "terrace_queried_block": QueriedBlock,
    "terrace_evict_result": EvictResult, "terrace_device_options": DeviceOptions,
    "terrace_pages_layout": PagesLayout, "terrace_tensor": Tensor, "terrace_edge": Edge,
    "terrace_page_list": PageList, "terrace_rope": Rope,
}

Callback = CFUNCTYPE(None, c_void_p, POINTER(Completion))
_callback: Any = Callback  # stubs differ in whether it may be made of nothing
NO_CALLBACK = _callback()

_KEYS = [c_void_p, c_uint32, POINTER(Id), c_size_t, POINTER(Request)]  # client, group, keys, …
_ASYNC = [c_uint64, Callback, c_void_p]
_READ, _WRITE = POINTER(ReadLease), POINTER(WriteLease)
_WHY = [c_char_p, c_size_t]

# Every function: what it returns, then its arguments.
FUNCTIONS: Dict[str, Tuple[Any, Any]] = {
    "terrace_abi_version": (c_uint32, []),
    "terrace_status_name": (c_char_p, [c_int32]),
    "terrace_client_create": (c_int32, [POINTER(ClientOptions), POINTER(c_void_p), *_WHY]),
    "terrace_client_destroy": (None, [c_void_p]),
    "terrace_client_wait_connected": (c_int32, [c_void_p, c_uint64]),
    "terrace_client_is_connected": (c_int, [c_void_p]),
    "terrace_client_boot_id": (c_uint64, [c_void_p]),
    "terrace_client_is_bypassed": (c_int, [c_void_p, POINTER(c_uint64)]),
    "terrace_client_is_reader": (c_int, [c_void_p]),
    "terrace_client_last_error": (c_size_t, [c_void_p, *_WHY]),
    "terrace_group_spec_check": (c_int32, [POINTER(GroupSpec), POINTER(Id), *_WHY]),
    "terrace_space_layout": (c_int32, [POINTER(Space), c_uint32, POINTER(c_uint64),
                                       POINTER(c_uint64)]),
    "terrace_space_codec_parts": (c_int32, [POINTER(Space), POINTER(c_uint64), POINTER(c_uint64),
                                            *_WHY]),
    "terrace_open": (c_int32, [c_void_p, POINTER(GroupSpec), c_uint64, c_uint64,
                               POINTER(c_uint32), *_WHY]),
    "terrace_hash_tokens": (c_int32, [c_void_p, c_uint32, POINTER(Id), c_void_p, c_size_t,
                                      POINTER(Id), c_size_t, POINTER(c_size_t)]),
    "terrace_hash_digests": (c_int32, [c_void_p, c_uint32, c_char_p, c_size_t, c_size_t,
                                       POINTER(Id)]),
    "terrace_match": (c_int32, [*_KEYS, POINTER(MatchResult)]),
    "terrace_prefetch": (c_int32, [*_KEYS, POINTER(c_uint32)]),
    "terrace_acquire": (c_int32, [*_KEYS, _READ]),
    "terrace_join_read": (c_int32, [c_void_p, c_uint32, Id, c_uint64, _READ]),
    "terrace_join_read_flagged": (c_int32, [c_void_p, c_uint32, Id, c_uint64, c_uint32, _READ]),
    "terrace_wait_ready": (c_int32, [c_void_p, _READ, c_uint32, c_uint64]),
    "terrace_read_lease_block_count": (c_uint32, [_READ]),
    "terrace_read_lease_token_count": (c_uint32, [_READ]),
    "terrace_read_lease_ready_count": (c_uint32, [_READ]),
    "terrace_read_lease_token": (Id, [_READ]),
    "terrace_read_lease_is_in_device": (c_int, [_READ, c_uint32]),
    "terrace_read_lease_spans": (c_uint32, [_READ, POINTER(Span), c_uint32]),
    "terrace_read_lease_is_valid": (c_int, [_READ]),
    "terrace_read_lease_slot": (c_void_p, [_READ, c_uint32, c_uint32, POINTER(c_uint64)]),
    "terrace_read_lease_is_part_ready": (c_int, [_READ, c_uint32, c_uint32, c_uint32]),
    "terrace_read_lease_copy_part": (c_int32, [_READ, c_uint32, c_uint32, c_uint32, c_void_p,
                                               c_size_t]),
    "terrace_read_lease_chunk_position": (c_int32, [_READ, c_uint32, c_uint32,
                                                    POINTER(c_uint32)]),
    "terrace_read_lease_copy_blocks": (c_int32, [_READ, c_uint32, c_uint32, c_uint32,
                                                 POINTER(c_void_p)]),
    "terrace_read_lease_release": (None, [_READ, c_uint32]),
    "terrace_reserve": (c_int32, [*_KEYS, _WRITE]),
    "terrace_join_write": (c_int32, [c_void_p, c_uint32, Id, c_uint64, _WRITE]),
    "terrace_write_lease_key_count": (c_uint32, [_WRITE]),
    "terrace_write_lease_key": (c_int32, [_WRITE, c_uint32, POINTER(ReservedKey)]),
    "terrace_write_lease_keys": (c_uint32, [_WRITE, POINTER(ReservedKey), c_uint32]),
    "terrace_write_lease_token": (Id, [_WRITE]),
    "terrace_write_lease_is_valid": (c_int, [_WRITE]),
    "terrace_write_lease_slot": (c_void_p, [_WRITE, c_uint32, c_uint32, POINTER(c_uint64)]),
    "terrace_write_lease_write_part": (c_int32, [_WRITE, c_uint32, c_uint32, c_uint32, c_void_p,
                                                 c_size_t]),
    "terrace_write_lease_write_blocks": (c_int32, [_WRITE, c_uint32, c_uint32, c_uint32,
                                                   POINTER(c_void_p)]),
    "terrace_write_lease_checksum_part": (c_int32, [_WRITE, c_uint32, c_uint32, c_uint32]),
    "terrace_write_lease_mark_part": (c_int32, [_WRITE, c_uint32, c_uint32, c_uint32]),
    "terrace_write_lease_mark_absent": (c_int32, [_WRITE, c_uint32, c_uint32]),
    "terrace_commit": (c_int32, [c_void_p, _WRITE, POINTER(Request), POINTER(c_uint32)]),
    "terrace_write_lease_abort": (None, [_WRITE]),
    "terrace_device_create": (c_int32, [POINTER(DeviceOptions), POINTER(c_void_p), *_WHY]),
    "terrace_device_destroy": (None, [c_void_p]),
    "terrace_device_backend": (c_char_p, [c_void_p]),
    "terrace_device_reason": (c_size_t, [c_void_p, *_WHY]),
    "terrace_pages_read_tensor": (c_int32, [POINTER(Tensor), POINTER(PagesLayout), *_WHY]),
    "terrace_pages_create": (c_int32, [c_void_p, POINTER(PagesLayout), POINTER(Space),
                                       POINTER(c_void_p), *_WHY]),
    "terrace_pages_destroy": (None, [c_void_p]),
    "terrace_client_pin_arena": (c_int32, [c_void_p, c_void_p, *_WHY]),
    "terrace_client_pause_pinning": (c_int32, [c_void_p, c_uint64]),
    "terrace_client_resume_pinning": (None, [c_void_p]),
    "terrace_pages_store": (c_int32, [c_void_p, _WRITE, POINTER(PageList), Edge,
                                      POINTER(c_void_p), *_WHY]),
    "terrace_pages_load": (c_int32, [c_void_p, _READ, POINTER(PageList), Edge, POINTER(c_void_p),
                                     *_WHY]),
    "terrace_copy_page_reuse": (c_int32, [c_void_p, Edge]),
    "terrace_copy_layer_ready": (c_int32, [c_void_p, c_uint32, Edge]),
    "terrace_copy_poll": (c_int32, [c_void_p]),
    "terrace_copy_wait": (c_int32, [c_void_p, c_uint64]),
    "terrace_copy_destroy": (None, [c_void_p]),
    "terrace_acquire_async": (c_int32, [*_KEYS, *_ASYNC]),
    "terrace_prefetch_async": (c_int32, [*_KEYS, *_ASYNC]),
    "terrace_reserve_async": (c_int32, [*_KEYS, *_ASYNC]),
    "terrace_commit_async": (c_int32, [c_void_p, _WRITE, POINTER(Request), *_ASYNC]),
    "terrace_poll": (c_int32, [c_void_p, POINTER(Completion)]),
    "terrace_poll_until": (c_int32, [c_void_p, c_uint64, POINTER(Completion)]),
    "terrace_event_fd": (c_int, [c_void_p]),
    "terrace_touch": (c_int32, _KEYS),
    "terrace_query": (c_int32, [*_KEYS, POINTER(QueriedBlock)]),
    "terrace_wait_persisted": (c_int32, _KEYS),
    "terrace_evict": (c_int32, [*_KEYS, POINTER(EvictResult)]),
    "terrace_pin": (c_int32, [*_KEYS, POINTER(c_uint32)]),
    "terrace_reset": (c_int32, [c_void_p, c_uint32]),
    "terrace_stats": (c_int32, [c_void_p, c_uint64, c_char_p, c_size_t, POINTER(c_size_t)]),
}


def _candidates() -> Iterator[str]:
    if "TERRACE_LIBRARY" in os.environ:
        yield os.environ["TERRACE_LIBRARY"]
        return
    beside = pathlib.Path(__file__).with_name("libterrace.so.1")
    if beside.exists():
        yield str(beside)
    yield "libterrace.so.1"


_BITS: Dict[Any, int] = {c_uint32: 32, c_uint64: 64, c_size_t: 64}


def _argument(function: str, index: int, kind: Any) -> Any:
    """An argument's type; of a number one that ctypes does not cut in silence. Callers check what
    their own callers pass (errors.number); this is for what one of them forgets."""
    if kind not in _BITS:
        return kind
    bits = _BITS[kind]

    def from_param(_cls: type, value: Any) -> Any:
        if isinstance(value, int) and not 0 <= value < 1 << bits:
            raise OverflowError(f"{function}, argument {index}: {value} goes beyond 0 to "
                                f"2^{bits} - 1")
        return kind.from_param(value)

    return type("Whole", (kind,), {"from_param": classmethod(from_param)})


def _load() -> Any:
    tried = []
    for path in _candidates():
        try:
            library = ctypes.CDLL(path)
        except OSError as error:
            tried.append(f"{path}: {error}")
            continue
        abi_version = library.terrace_abi_version()
        missing = [name for name in FUNCTIONS if not hasattr(library, name)]
        if abi_version < ABI_VERSION or missing:
            raise ImportError(f"{path} has ABI version {abi_version}"
                              + (f", without {missing[0]}" if missing else "")
                              + f"; this package needs {ABI_VERSION}, of its own release: install "
                              "a newer libterrace")
        for name, (result, arguments) in FUNCTIONS.items():
            function = getattr(library, name)
            function.restype = result
            function.argtypes = [_argument(name, index, kind)
                                 for index, kind in enumerate(arguments, 1)]
        return library
    raise ImportError("libterrace.so.1 was not found; install libterrace, or name the file in "
                      "TERRACE_LIBRARY. Tried: " + "; ".join(tried))


lib = _load()


def plugin_path() -> Optional[str]:
    """Of libterrace_cuda.so, where it was installed: beside libterrace, or in terrace/ there."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        paths = {line[line.index("/"):].rstrip("\n") for line in maps if "/libterrace.so" in line}
    for path in sorted(paths):
        for directory in (pathlib.Path(path).parent, pathlib.Path(path).parent / "terrace"):
            plugin = directory / "libterrace_cuda.so"
            if plugin.is_file():
                return str(plugin)
    return None
