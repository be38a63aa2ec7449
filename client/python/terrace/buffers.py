"""Addresses of other libraries' memory: anything with the buffer protocol, NumPy arrays, DLPack
tensors and torch tensors, without importing any of those libraries."""
import ctypes
from typing import Any, List, NamedTuple, Sequence, Tuple

from .errors import Invalid, Unsupported

_DL_CPU, _DL_CUDA, _DL_CUDA_HOST = 1, 2, 3


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


class _Buffer(ctypes.Structure):
    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("len", ctypes.c_ssize_t),
                ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int),
                ("ndim", ctypes.c_int), ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p), ("suboffsets", ctypes.c_void_p),
                ("internal", ctypes.c_void_p)]


_PYBUF_SIMPLE, _PYBUF_WRITABLE = 0, 1


def _of_buffer(buffer: Any, is_written: bool) -> Tuple[int, int]:
    view = _Buffer()
    try:
        ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(buffer), ctypes.byref(view),
                                            _PYBUF_WRITABLE if is_written else _PYBUF_SIMPLE)
    except (BufferError, TypeError, ValueError) as error:
        why = str(error).rstrip(".")
        raise Invalid(f"a {type(buffer).__name__} cannot be used: {why}. Pass contiguous"
                      f"{', writable' if is_written else ''} memory") from None
    found = (view.buf or 0, view.len)
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(view))
    return found


def _of_dlpack(tensor: Any) -> Tuple[int, int]:
    capsule = tensor.__dlpack__()  # its deleter runs with the capsule: the memory is the tensor's
    found = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    if found.device_type not in (_DL_CPU, _DL_CUDA_HOST):
        raise _on_device(tensor)
    count = 1
    for i in reversed(range(found.ndim)):
        if found.strides and found.shape[i] > 1 and found.strides[i] != count:
            raise Invalid(f"a {type(tensor).__name__} of strides "
                          f"{[found.strides[j] for j in range(found.ndim)]} is not contiguous: "
                          "make it so first")
        count *= found.shape[i]
    return (found.data or 0) + found.byte_offset, count * found.bits * found.lanes // 8


def _on_device(tensor: Any) -> Unsupported:
    return Unsupported(f"a {type(tensor).__name__} lies in device memory, which this build does "
                       "not copy from or to: copy it to host memory first")


def address_of(buffer: Any, is_written: bool = False) -> Tuple[int, int]:
    """(address, bytes) of contiguous host memory. `buffer` must outlive the use."""
    if hasattr(buffer, "data_ptr") and hasattr(buffer, "element_size"):  # torch
        if buffer.device.type != "cpu":
            raise _on_device(buffer)
        if not buffer.is_contiguous():
            raise Invalid(f"a tensor of shape {tuple(buffer.shape)} and strides "
                          f"{buffer.stride()} is not contiguous: call contiguous() first")
        return buffer.data_ptr(), buffer.numel() * buffer.element_size()
    if hasattr(buffer, "__cuda_array_interface__"):
        raise _on_device(buffer)
    if hasattr(buffer, "__dlpack__") and not hasattr(buffer, "__array_interface__"):
        return _of_dlpack(buffer)
    return _of_buffer(buffer, is_written)


class View(NamedTuple):
    """A tensor as it lies in memory; `place` is "cpu" or "cuda"."""
    address: int
    shape: Tuple[int, ...]
    stride_bytes: Tuple[int, ...]
    item_bytes: int
    place: str


def view_of(tensor: Any) -> View:
    """Where a tensor's elements are, whatever its strides: of torch, NumPy, or with DLPack. Memory
    that says it is read-only is refused."""
    if hasattr(tensor, "data_ptr") and hasattr(tensor, "element_size"):  # torch
        item = tensor.element_size()
        return View(tensor.data_ptr(), tuple(tensor.shape),
                    tuple(s * item for s in tensor.stride()), item, tensor.device.type)
    for name, place in (("__array_interface__", "cpu"), ("__cuda_array_interface__", "cuda")):
        found = getattr(tensor, name, None)
        if found is not None:
            if found["data"][1]:
                raise Invalid(f"a {type(tensor).__name__} of shape {tuple(found['shape'])} is "
                              "read-only, and pages are loaded into it: pass writable memory")
            item = int(found["typestr"][2:])
            strides = found.get("strides") or _dense(found["shape"], item)
            return View(found["data"][0], tuple(found["shape"]), tuple(strides), item, place)
    if not hasattr(tensor, "__dlpack__"):
        raise Invalid(f"a {type(tensor).__name__} is no tensor: pass one of torch or NumPy, or one "
                      "with DLPack")
    capsule = tensor.__dlpack__()
    found = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    item = found.bits * found.lanes // 8
    shape = tuple(found.shape[i] for i in range(found.ndim))
    strides = (tuple(found.strides[i] * item for i in range(found.ndim)) if found.strides
               else _dense(shape, item))
    places = {_DL_CPU: "cpu", _DL_CUDA_HOST: "cpu", _DL_CUDA: "cuda"}
    return View((found.data or 0) + found.byte_offset, shape, strides, item,
                places.get(found.device_type, f"DLPack device {found.device_type}"))


def _dense(shape: Sequence[int], item_bytes: int) -> Tuple[int, ...]:
    strides = []
    for size in reversed(shape):
        strides.append(item_bytes)
        item_bytes *= size
    return tuple(reversed(strides))


class Addresses:
    """Pointers that the caller has computed: a C-contiguous NumPy array of uint64, one a part,
    block by block. What they point to must have the room, and outlive the call."""

    def __init__(self, pointers: Any):
        if pointers.dtype.str != "<u8" or not pointers.flags["C_CONTIGUOUS"]:
            raise Invalid(f"addresses of {pointers.dtype}: pass contiguous uint64")
        self.pointers = pointers


def pointers_to_parts(buffers: Any, part_bytes: Sequence[int], block_count: int,
                      is_written: bool) -> Any:
    """One pointer a part, block by block.

    `buffers` holds one buffer a part, or one a block (its parts one behind the other); or it is
    itself one buffer of all blocks.
    """
    per_block = len(part_bytes)
    block_bytes = sum(part_bytes)
    if isinstance(buffers, Addresses):
        if buffers.pointers.size != block_count * per_block:
            raise Invalid(f"{buffers.pointers.size} addresses for {block_count} blocks of "
                          f"{per_block} parts")
        return ctypes.cast(buffers.pointers.ctypes.data, ctypes.POINTER(ctypes.c_void_p))
    if not isinstance(buffers, (list, tuple)):
        address, found_bytes = address_of(buffers, is_written)
        _expect(found_bytes, block_count * block_bytes,
                f"{block_count} blocks of {block_bytes} bytes each, in all")
        starts = [address + i * block_bytes for i in range(block_count)]
        return _split(starts, part_bytes)
    if len(buffers) == block_count * per_block:
        found: List[int] = []
        for i, buffer in enumerate(buffers):
            address, found_bytes = address_of(buffer, is_written)
            _expect(found_bytes, part_bytes[i % per_block], f"part {i % per_block}, of")
            found.append(address)
        return (ctypes.c_void_p * max(len(found), 1))(*found)
    if len(buffers) != block_count:
        raise Invalid(f"{len(buffers)} buffers for {block_count} blocks of {per_block} parts: pass "
                      f"{block_count} or {block_count * per_block}")
    starts = []
    for buffer in buffers:
        address, found_bytes = address_of(buffer, is_written)
        _expect(found_bytes, block_bytes, "a block of")
        starts.append(address)
    return _split(starts, part_bytes)


def _expect(found_bytes: int, expected_bytes: int, what: str) -> None:
    if found_bytes != expected_bytes:
        raise Invalid(f"a buffer of {found_bytes} bytes for {what} {expected_bytes} bytes")


def _split(starts: Sequence[int], part_bytes: Sequence[int]) -> "ctypes.Array[ctypes.c_void_p]":
    offsets, offset = [], 0
    for each in part_bytes:
        offsets.append(offset)
        offset += each
    found = [start + offset for start in starts for offset in offsets]
    return (ctypes.c_void_p * max(len(found), 1))(*found)
