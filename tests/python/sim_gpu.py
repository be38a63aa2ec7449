"""A GPU for tests: the simulated device, whose streams run when a seed says so, under the name of
`cuda`. Its memory is this process's, so a test can look at it, but only behind a kernel.

Needs TERRACE_SIM_PLUGIN, the path of libterrace_sim.so.
"""
import ctypes
import os

import numpy

_lib = None


def plugin_path():
    return os.environ["TERRACE_SIM_PLUGIN"]


def configure(seed, *, steps_per_call_max=3, copy_failures_per_million=0, store_slowness=1,
              registration_failures_per_million=0, dropped_edge=-1):
    """A new device, for all that is opened from here on."""
    global _lib  # pylint: disable=global-statement
    _lib = ctypes.CDLL(plugin_path())
    _lib.sim_stream_create.restype = ctypes.c_void_p
    _lib.sim_stream_copy.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_uint64]
    _lib.sim_stream_copy.restype = None
    _lib.sim_mark_create.restype = ctypes.c_void_p
    _lib.sim_mark_create.argtypes = [ctypes.c_void_p]
    _lib.sim_mark_await.argtypes = _lib.sim_mark_destroy.argtypes = [ctypes.c_void_p]
    _lib.sim_mark_destroy.restype = None
    _lib.sim_stray_count.restype = ctypes.c_uint64
    _lib.sim_configure(ctypes.c_uint64(seed), steps_per_call_max, copy_failures_per_million,
                       store_slowness, registration_failures_per_million, dropped_edge)


def stray_count():
    """Copies that touched host memory which is not registered."""
    return _lib.sim_stray_count()


class Mark:
    """What is queued on a stream by now."""

    def __init__(self, stream):
        self._mark = _lib.sim_mark_create(stream)

    def __del__(self):
        _lib.sim_mark_destroy(self._mark)

    def wait(self):
        """Also where a copy has failed that its stream waited for: the engine's kernels do not."""
        _lib.sim_mark_await(self._mark)


class Place:
    """As torch.device, with the stream on which one engine computes."""

    type, index = "cuda", 0

    def __init__(self):
        self.stream = _lib.sim_stream_create()

    def __str__(self):
        return "cuda:0"


class Engine:
    """In the place of terrace.vllm.copies.CudaEngine: the edges that the connector uses."""

    def __init__(self, place):
        self._stream = place.stream

    def edge(self):
        return self._stream

    def mark(self):
        return Mark(self._stream).wait


class Tensor:
    """A torch tensor of the host's that says it lies on the device."""

    def __init__(self, tensor, place):
        self.tensor = tensor
        self.device = place

    def __getattr__(self, name):
        return getattr(self.tensor, name)

    def unflatten(self, dim, sizes):
        return Tensor(self.tensor.unflatten(dim, sizes), self.device)

    def narrow(self, *where):
        return Tensor(self.tensor.narrow(*where), self.device)


class Memory:
    """How an engine writes and reads pages: by kernels on its stream."""

    @staticmethod
    def is_same(seen, values):
        return numpy.array_equal(seen, values)

    def __init__(self):
        self.place = Place()
        self._kept = []  # what kernels read or write, until they have run
        self._checks = []

    def shown(self, tensor):
        return Tensor(tensor, self.place)

    def write(self, page, values):
        """page: a contiguous part of a tensor; values: as many, in an array."""
        values = numpy.ascontiguousarray(values)
        self._kept.append(values)
        _lib.sim_stream_copy(self.place.stream, page.data_ptr(), values.ctypes.data, values.nbytes)

    def check(self, page, values, what):
        """What a kernel reads here has to be `values`; known when the step is over."""
        seen = numpy.empty_like(values)
        _lib.sim_stream_copy(self.place.stream, seen.ctypes.data, page.data_ptr(), seen.nbytes)
        self._checks.append((seen, values, what))

    def end_step(self):
        """Something to wait for: behind it everything that was asked is known."""
        mark = Mark(self.place.stream)
        kept, self._kept = self._kept, []
        checks, self._checks = self._checks, []

        def settle():
            mark.wait()
            kept.clear()
            return [what for seen, values, what in checks if not self.is_same(seen, values)]

        return settle
