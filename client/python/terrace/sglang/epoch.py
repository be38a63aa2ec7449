"""Which weights a rank's pages are of, found from how SGLang flushes its cache."""
import logging
import sys
from typing import Any, Optional

from ..epochs import mask_of, of_nobody_else, of_version

logger = logging.getLogger("sglang.terrace")


def _weight_version() -> Optional[str]:
    """As SGLang was told with the last update of the weights, or at its start; in this process all
    ranks of it are one. None: this SGLang does not say."""
    try:
        from sglang.srt.runtime_context import get_serving  # pylint: disable=C0415

        return str(get_serving().weight_version)
    except Exception:  # pylint: disable=broad-except
        return None


def _version_of_update() -> Optional[str]:
    """That came with the update of the weights behind which SGLang flushes now; None: none came, or
    it flushes for another reason. It records the version when it has flushed, in the same turn, and
    tells a backend neither (0.5.23: scheduler_components/weight_updater.py)."""
    frame: Any = sys._getframe(1)  # pylint: disable=protected-access
    while frame is not None:
        request = frame.f_locals.get("recv_req")
        if hasattr(request, "weight_version") and hasattr(request, "flush_cache"):
            version = request.weight_version
            return None if version is None else str(version)
        frame = frame.f_back
    return None


def _launch() -> str:
    """A word that the ranks of one instance have in common, and nobody else: of those that know one
    store of torch.distributed the first one's. Two instances may have one parent, and started in
    one moment; where there is no store each rank has a word of its own."""
    word = of_nobody_else()
    try:
        from torch import distributed  # pylint: disable=import-outside-toplevel

        if distributed.is_available() and distributed.is_initialized():
            store = distributed.distributed_c10d._get_default_store()  # pylint: disable=W0212
            return bytes(store.compare_set("terrace/launch", "", word)).decode()
    except Exception as error:  # pylint: disable=broad-except
        logger.warning("terrace: ranks cannot agree on a word (%s: %s): after a flush without a "
                       "weight version none finds pages of another", type(error).__name__, error)
    return word


class Epoch:
    """Which weights this rank's pages are of. Ranks agree without a word: they are flushed alike,
    and told of versions alike."""

    def __init__(self, is_kept: bool, dp_rank: int):
        self._is_kept = is_kept
        self._launch = f"{_launch()} {dp_rank}"  # replicas may be updated apart
        self._flush_count = 0
        self._versions = {_weight_version()}  # that SGLang says while pages are of this epoch
        self.mask = b""

    @property
    def is_certain(self) -> bool:
        """Not behind an update without a flush: pages of both weights are about."""
        return self._is_kept or _weight_version() in self._versions

    def on_flush(self) -> None:
        """SGLang has flushed its cache."""
        if not self._is_kept:
            self.begin()

    def begin(self) -> None:
        """Nothing of before is used any more."""
        told, before = _version_of_update(), self._versions
        self._versions = {_weight_version()} | (set() if told is None else {told})
        self._flush_count += 1
        name = (of_version(told) if told is not None and told not in before
                else f"flush {self._flush_count} of {self._launch}")
        self.mask = mask_of(name)
        logger.info("terrace: keys are of epoch %r from here on", name)
