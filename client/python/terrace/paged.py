"""Paged KV caches: copies between an engine's pages and the slots of leases, in one call a batch.

    device = terrace.Device()                           # a GPU where the plugin works, or the host
    cache = terrace.PagedCache(device, space, kv_tensors, axes="BPTHD")
    with group.reserve(keys) as lease:
        with cache.store(lease, page_ids, kv_written=stream) as copy:
            copy.page_reuse(stream)                      # the engine may write to the pages again
            copy.wait()                                  # or copy.poll() now and then
        lease.commit()

Of a Space of chunks the cache is given a Rope, and every call where its pages' tokens stand:

    cache = terrace.PagedCache(device, space.chunks(), kv_tensors, axes="BPTHD",
                               rope=terrace.Rope(model.rotary_emb.inv_freq.tolist()))
    cache.load(lease, page_ids, destination_free=stream, positions=512)   # keys turn on their way

An edge (kv_written, destination_free, and what page_reuse and layer_ready take) is the engine's
stream, or terrace.HOST, which says that the host has waited; docs/DEVICE.md tells what each
prevents. Tensors are taken as they lie: strides and addresses from torch, NumPy or DLPack.
"""
import ctypes
import dataclasses
import os
from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Tuple, TypeVar, Union

from . import _native, buffers
from .calls import microseconds
from .errors import Invalid, Unsupported, from_status, number, numbers, text_of
from .leases import ReadLease, WriteLease
from .space import CODEC_PREFIX, Space

if TYPE_CHECKING:
    from .pages import Pages  # which needs NumPy

lib = _native.lib
PAGE_NONE = (1 << 64) - 1
PAGES_PER_CALL_MAX = 4096
_OPAQUE = 1
_PAIRINGS = ("neox", "gptj")
_DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}


class _Host:
    """The edge that needs no wait: the engine's work is over, or this thread waits."""

    def __repr__(self) -> str:
        return "terrace.HOST"


HOST = _Host()
Edge = Union[_Host, int, Any]
Positions = Union[None, int, Sequence[int]]


def _edge(name: str, engine: Edge) -> _native.Edge:
    """Of HOST, a stream's number (a cudaStream_t), or a torch.cuda.Stream."""
    if isinstance(engine, _Host):
        return _native.Edge(kind=2)
    stream = getattr(engine, "cuda_stream", engine)
    if isinstance(stream, bool) or not isinstance(stream, int):
        raise Invalid(f"{name} is {engine!r}: pass the engine's stream, or terrace.HOST if the "
                      "host has waited for the engine")
    return _native.Edge(kind=1, stream=number(name, stream, 64))


def _call(function: Any, doing: str, *arguments: Any) -> None:
    why = ctypes.create_string_buffer(1024)
    status = function(*arguments, why, len(why))
    if status:
        raise from_status(status, doing, why.value.decode())


@dataclasses.dataclass(frozen=True)
class Rope:
    """How a model turns its keys by their positions.

    inv_freq: the angle of each pair a token, as the model uses it, its static scaling applied;
    none: the keys have no positions. Elements [offset, offset + 2 * len(inv_freq)) of each head
    turn, in pairs (i, i + n) ("neox") or (2i, 2i + 1) ("gptj"). scaling: what the model's
    configuration calls it: "none", "linear", "yarn" or "llama3"; others depend on the prompt and
    are Unsupported, and so are ropes that differ by layer, and mrope.
    """
    inv_freq: Sequence[float] = ()
    pairing: str = "neox"
    offset: int = 0
    scaling: Optional[str] = "none"
    is_per_layer: bool = False
    is_multidimensional: bool = False

    def _native(self) -> Tuple[_native.Rope, Any]:
        try:
            found = [float(frequency) for frequency in self.inv_freq]
        except (TypeError, ValueError) as error:
            raise Invalid(f"inv_freq is {self.inv_freq!r}: pass one number a pair") from error
        for name in ("pairing", "scaling"):
            if not isinstance(getattr(self, name), (str, type(None))):
                raise Invalid(f"{name} is {getattr(self, name)!r}: pass its name")
        if (self.pairing or "neox") not in _PAIRINGS:
            raise Unsupported(
                f"pairing is {self.pairing!r}: it is 'neox' where elements (i, i + n) turn "
                "together, and 'gptj' where (2i, 2i + 1) do; keys of another kind of positions "
                "cannot be moved, so use prefixes for such a model")
        frequencies = (ctypes.c_double * max(len(found), 1))(*found)
        return _native.Rope(
            rot_dim=2 * len(found), rot_offset=number("offset", self.offset),
            flags=int(self.is_per_layer) | int(self.is_multidimensional) << 1,
            pairing=text_of("pairing", self.pairing or "neox"),
            scaling=text_of("scaling", self.scaling or "none"),
            inv_freq=frequencies), frequencies


_Kind = TypeVar("_Kind", bound="_Handle")


class _Handle:
    """Something of the library's, destroyed once."""

    def __init__(self) -> None:
        self.native = ctypes.c_void_p()

    def __enter__(self: _Kind) -> _Kind:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "native", None):
            self.close()

    def _destroy(self, native: Any) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Gives it back. A second time does nothing."""
        native, self.native = self.native, ctypes.c_void_p()
        if native:
            self._destroy(native)


_WHY_COPY_ENDED = {
    8: "its lease has ended, or the connection: use nothing of what was loaded",
    9: "a page has a NaN, an infinity or a value above the largest bf16, which the codec of its "
       "Space does not encode: its block is not written, the others are"}  # by status


class Device(_Handle):
    """What copies. backend: "auto" (the plugin where it has a device, else the host), "host", or
    "cuda", which fails where it cannot be. plugin_path: of libterrace_cuda.so, absolute; None: the
    one that was installed with libterrace, if there is one. workers: threads of the host's copies,
    1 to 64."""

    def __init__(self, backend: str = "auto", *, plugin_path: Optional[str] = None, index: int = 0,
                 workers: int = 1):
        super().__init__()
        if not plugin_path and backend != "host":
            plugin_path = _native.plugin_path()
        options = _native.DeviceOptions(
            backend=text_of("backend", backend), device_index=number("index", index),
            worker_count=number("workers", workers),
            plugin_path=None if plugin_path is None else text_of("plugin_path",
                                                                 os.fspath(plugin_path)))
        _call(lib.terrace_device_create, "opening a device", options, ctypes.byref(self.native))

    @property
    def backend(self) -> str:
        """"host" or "cuda"."""
        return lib.terrace_device_backend(self.native).decode()

    @property
    def reason(self) -> str:
        """Why it is this backend."""
        text = ctypes.create_string_buffer(1024)
        lib.terrace_device_reason(self.native, text, len(text))
        return text.value.decode()

    def _destroy(self, native: Any) -> None:
        lib.terrace_device_destroy(native)


class Copy(_Handle):
    """One store or load under way. Closing it waits for it; a store that nobody has polled to its
    end is not written."""

    def __init__(self, cache: "PagedCache"):
        super().__init__()
        self._cache = cache  # tensors stay for as long as they are copied

    def poll(self) -> bool:
        """Whether it has ended: a store's blocks may be committed, a load's bytes are in their
        pages. Gone if the lease was not valid throughout: use nothing of what was loaded.
        Unsupported if the Space's codec refused a page (a NaN): its block is not written, the
        others are."""
        return self._ended(lib.terrace_copy_poll(self.native), is_asked=True)

    def wait(self, timeout_s: float = 10.0) -> None:
        """The same, waiting. Busy at the deadline."""
        self._ended(lib.terrace_copy_wait(self.native, microseconds(timeout_s)), is_asked=False)

    def page_reuse(self, engine: Edge) -> None:
        """Of a store: `engine` may write to the pages again after this."""
        self._given(lib.terrace_copy_page_reuse(self.native, _edge("engine", engine)),
                    "page_reuse")

    def layer_ready(self, layer: int, engine: Edge) -> None:
        """Of a load: `engine` may read this layer of the pages after this."""
        self._given(lib.terrace_copy_layer_ready(self.native, number("layer", layer),
                                                 _edge("engine", engine)),
                    f"layer_ready of layer {layer}")

    @staticmethod
    def _ended(status: int, is_asked: bool) -> bool:
        if status == 4 and is_asked:
            return False
        if status:
            raise from_status(status, "a copy", _WHY_COPY_ENDED.get(status, ""))
        return True

    @staticmethod
    def _given(status: int, doing: str) -> None:
        if status:
            raise from_status(status, doing)

    def _destroy(self, native: Any) -> None:
        lib.terrace_copy_destroy(native)


class PagedCache(_Handle):
    """An engine's paged KV cache, described for one Space of layout "nhd" or "hnd", or, with
    `opaque`, of the engine's own.

    layers: one tensor a layer; or a (K, V) pair a layer; or one slab of all layers, whose `axes`
    name the layer's dimension. axes: what each dimension is, a letter each: Block, Plane (K and V),
    Token, Head, Dim, Layer; without them page_count says which one the blocks are, and sizes that
    can be read in two ways are refused. block_tokens: of the kernels' blocks, where these are
    smaller than the Space's. rope: of a Space of chunks, and of no other.
    """

    def __init__(self, device: Device, space: Space, layers: Any, *, axes: Optional[str] = None,
                 page_count: Optional[int] = None, block_tokens: Optional[int] = None,
                 rope: Optional[Rope] = None):
        super().__init__()
        self.space = space
        self._tensors = layers
        self._device = device
        views, slab_stride, axes = _views_of(layers, axes)
        if space.quantisation.startswith(CODEC_PREFIX) or space.is_of_chunks:
            _check_numbers(space, layers)
        first = views[0]
        for view in views:
            if view[1:] != first[1:]:
                raise Invalid(f"layers differ: {view[1:]} beside {first[1:]}: describe equal ones")
            if view.place != ("cuda" if device.backend == "cuda" else "cpu"):
                raise Unsupported(f"a layer lies on {view.place}, and the device's backend is "
                                  f"{device.backend} ({device.reason})")
        if min((slab_stride, *first.stride_bytes)) < 0:
            raise Invalid(f"strides {first.stride_bytes}: negative ones are no paged cache's")
        if block_tokens is None:
            block_tokens = space.block_tokens
        layout = _native.PagesLayout(
            layer_count=space.layers, plane_count=1 if space.attention == "mla" else 2,
            page_tokens=space.block_tokens, block_tokens=number("block_tokens", block_tokens),
            head_count=space.kv_heads, head_bytes=space.head_size * first.item_bytes,
            layer_stride_bytes=slab_stride, address_count=len(views),
            addresses=(ctypes.c_uint64 * len(views))(*(view.address for view in views)))
        if page_count is None:
            page_count = _page_count(first, axes, layout)
        layout.page_count = number("page_count", page_count, 64)
        tensor = _native.Tensor(
            dimension_count=len(first.shape), item_bytes=first.item_bytes,
            shape=numbers("a dimension", first.shape),
            stride_bytes=numbers("a stride", first.stride_bytes),
            axes=text_of("axes", axes) if axes else None)
        _call(lib.terrace_pages_read_tensor, "reading a layer's tensor", tensor,
              ctypes.byref(layout))
        if rope is not None:
            native, _keep = rope._native()  # pylint: disable=protected-access
            layout.rope = ctypes.pointer(native)
        self._describe(layout)

    @classmethod
    def opaque(cls, device: Device, space: Space, pages: "Pages") -> "PagedCache":
        """Of bytes that only the engine understands, a part of the Space a run of `pages`, in the
        order in which they lie. The Space's layout names that order."""
        pages.check_uniform()
        run = pages.runs[0]
        tokens = space.block_tokens if run.byte_count % space.block_tokens == 0 else 1
        cache = cls.__new__(cls)
        _Handle.__init__(cache)
        cache.space, cache._tensors, cache._device = space, pages, device
        cache._describe(_native.PagesLayout(
            layer_count=len(pages.runs), plane_count=1, page_tokens=tokens, block_tokens=tokens,
            head_count=1, head_bytes=run.byte_count // tokens,
            page_count=number("block_count", pages.block_count, 64),
            block_stride_bytes=run.stride, token_stride_bytes=run.byte_count // tokens,
            address_count=len(pages.runs), flags=_OPAQUE,
            addresses=(ctypes.c_uint64 * len(pages.runs))(*(r.address for r in pages.runs))))
        return cache

    def _describe(self, layout: _native.PagesLayout) -> None:
        native, _keep = self.space._native()  # pylint: disable=protected-access
        _call(lib.terrace_pages_create, "describing a paged cache", self._device.native, layout,
              native, ctypes.byref(self.native))

    def store(self, lease: WriteLease, pages: Sequence[Optional[int]], *, kv_written: Edge,
              first_key: int = 0, member: int = 0, positions: Positions = None) -> Copy:
        """Queues copies of these pages to the lease's keys from first_key on. None, and keys that
        are not ours, are passed over. kv_written: the kernels that wrote the pages. positions: of
        chunks, where the first page's first token stands, if pages follow each other, or one a
        page."""
        copy = Copy(self)
        _call(lib.terrace_pages_store, f"storing {len(pages)} pages", self.native, lease.native,
              self._list(pages, number("first_key", first_key), member, positions),
              _edge("kv_written", kv_written), ctypes.byref(copy.native))
        return copy

    def load(self, lease: ReadLease, pages: Sequence[Optional[int]], *, destination_free: Edge,
             first_block: int = 0, member: int = 0, positions: Positions = None) -> Copy:
        """Queues copies of the lease's blocks, which are ready, into these pages; None is passed
        over. destination_free: the kernels that still read the pages. positions: of chunks, where
        the tokens stand now, as in `store`; keys are turned there. Unsupported, with the block:
        another rope made its keys; compute it again."""
        copy = Copy(self)
        _call(lib.terrace_pages_load, f"loading {len(pages)} pages", self.native, lease.native,
              self._list(pages, number("first_block", first_block), member, positions),
              _edge("destination_free", destination_free), ctypes.byref(copy.native))
        return copy

    def _list(self, pages: Sequence[Optional[int]], first: int, member: int,
              positions: Positions) -> _native.PageList:
        found = [PAGE_NONE if page is None else number("page", page, 64) for page in pages]
        at = None
        if positions is not None:
            each: Any = positions
            try:
                len(each)  # one a page
            except TypeError:  # one, of any kind of integer
                first_position = number("position", positions)
                each = range(first_position,
                             first_position + len(found) * self.space.block_tokens,
                             self.space.block_tokens)
            if len(each) != len(found):
                raise Invalid(f"positions are {len(each)}, and pages {len(found)}: pass one a "
                              "page, or the first one's")
            at = (ctypes.c_uint32 * max(len(found), 1))(
                *(number("position", position) for position in each))
        return _native.PageList(member=number("member", member), first=first, count=len(found),
                                page_indexes=(ctypes.c_uint64 * max(len(found), 1))(*found),
                                positions=at)

    def _destroy(self, native: Any) -> None:
        lib.terrace_pages_destroy(native)


def _check_numbers(space: Space, layers: Any) -> None:
    """Codecs and turns read numbers: halves of one kind are not those of the other."""
    tensors = layers if isinstance(layers, (list, tuple)) else [layers]
    for tensor in tensors:
        if isinstance(tensor, (list, tuple)):
            _check_numbers(space, tensor)
            continue
        name = str(getattr(tensor, "dtype", "")).rsplit(".", maxsplit=1)[-1]
        if name in _DTYPES and _DTYPES[name] != _DTYPES.get(space.dtype, space.dtype):
            raise Invalid(f"a layer's dtype is {name}, and the Space's is {space.dtype!r}: its "
                          f"numbers are read (layout {space.layout!r}, quantisation "
                          f"{space.quantisation!r}), so they must be the same")


def _views_of(layers: Any, axes: Optional[str]
              ) -> Tuple[List[buffers.View], int, Optional[str]]:
    """A view a tensor, K and V of a layer side by side; of a slab the first layer's, with what the
    layers are apart and the other dimensions' letters."""
    if not isinstance(layers, (list, tuple)):
        slab = buffers.view_of(layers)
        if axes is None or axes.count("L") != 1 or len(axes) != len(slab.shape):
            raise Invalid(f"axes is {axes!r}: of one slab of shape {slab.shape} they name every "
                          "dimension, the layers' L among them")
        at = axes.index("L")
        cut = slab._replace(shape=slab.shape[:at] + slab.shape[at + 1:],
                            stride_bytes=slab.stride_bytes[:at] + slab.stride_bytes[at + 1:])
        return [cut], slab.stride_bytes[at], axes.replace("L", "")
    tensors = [tensor for layer in layers
               for tensor in (layer if isinstance(layer, (list, tuple)) else (layer,))]
    if not tensors:
        raise Invalid("layers are none: pass a tensor a layer")
    return [buffers.view_of(tensor) for tensor in tensors], 0, axes


def _page_count(view: buffers.View, axes: Optional[str], layout: _native.PagesLayout) -> int:
    if axes is None or "B" not in axes:
        raise Invalid(f"axes is {axes!r}: name the dimensions of {view.shape}, or pass page_count")
    ratio = max(1, layout.page_tokens // max(1, layout.block_tokens))
    return view.shape[axes.index("B")] // ratio


__all__ = ["Copy", "Device", "HOST", "PagedCache", "Rope"]
